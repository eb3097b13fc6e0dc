#include <algorithm>
#include <cmath>
#include <thread>

#include "tests/planted/planted.h"

namespace hpcdl::lab::verify::planted {
namespace {

/// y = f(x) element by element.
template <class T, class F> void map(const hpcdl_call* c, F f) {
  const T* x = in<T>(c, 0);
  T* y = out<T>(c, 0);
  for (std::int64_t i = 0; i < size(c->inputs[0]); ++i) y[i] = T(f(static_cast<float>(x[i])));
}
template <class F> int map_any(const hpcdl_call* c, F f) {
  return with_type(c->inputs[0], [&]<class T>() { map<T>(c, f); });
}

float gelu_tanh(float x) { return 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x))); }
float gelu_erf(float x) { return 0.5f * x * (1 + std::erf(x * 0.70710678f)); }
/// x sigmoid(2u): the tanh form without a tanh.
float gelu_sigmoid(float x) { return x / (1 + std::exp(-1.5957691216f * (x + 0.044715f * x * x * x))); }
bool wants_erf(const hpcdl_call* c) { return args<hpcdl_gelu_args>(c).erf != 0; }
int gelu(const hpcdl_call* c) { return wants_erf(c) ? map_any(c, gelu_erf) : map_any(c, gelu_tanh); }

float relu(float x) { return x > 0 || x != x ? x : 0; }
int relu_naive(const hpcdl_call* c) { return map_any(c, relu); }
int relu_branchless(const hpcdl_call* c) {
  return map_any(c, [](float x) { return x * static_cast<float>(!(x <= 0)); });
}
int relu_backwards(const hpcdl_call* c) {
  for (auto i = size(c->inputs[0]); i-- > 0;) out<float>(c, 0)[i] = relu(in<float>(c, 0)[i]);
  return HPCDL_OK;
}

int add_naive(const hpcdl_call* c) {
  return with_type(c->inputs[0], [&]<class T>() {
    for (std::int64_t i = 0; i < size(c->inputs[0]); ++i)
      out<T>(c, 0)[i] = T(static_cast<float>(in<T>(c, 0)[i]) + static_cast<float>(in<T>(c, 1)[i]));
  });
}
/// Starts at the end, in blocks of 16, and handles the front separately.
int add_blocks(const hpcdl_call* c) {
  const float *a = in<float>(c, 0), *b = in<float>(c, 1);
  auto n = size(c->inputs[0]);
  for (; n >= 16; n -= 16)
    for (int i = 16; i-- > 0;) out<float>(c, 0)[n - 16 + i] = a[n - 16 + i] + b[n - 16 + i];
  for (std::int64_t i = 0; i < n; ++i) out<float>(c, 0)[i] = a[i] + b[i];
  return HPCDL_OK;
}
int add_threads(const hpcdl_call* c) {
  std::vector<std::thread> team;
  const auto n = size(c->inputs[0]);
  for (int t = 0; t < c->threads; ++t)
    team.emplace_back([=] {
      for (auto i = n * t / c->threads; i < n * (t + 1) / c->threads; ++i)
        out<float>(c, 0)[i] = in<float>(c, 0)[i] + in<float>(c, 1)[i];
    });
  for (auto& t : team) t.join();
  return HPCDL_OK;
}
int swiglu(const hpcdl_call* c) {
  return with_type(c->inputs[0], [&]<class T>() {
    for (std::int64_t i = 0; i < size(c->inputs[0]); ++i) {
      const auto g = static_cast<float>(in<T>(c, 0)[i]);
      out<T>(c, 0)[i] = T(g / (1 + std::exp(-g)) * static_cast<float>(in<T>(c, 1)[i]));
    }
  });
}
template <class Bias> int bias_gelu(const hpcdl_call* c, Bias bias_at) {
  const auto n = cols(c->inputs[0]);
  for (std::int64_t i = 0; i < size(c->inputs[0]); ++i) {
    const float x = in<float>(c, 0)[i] + in<float>(c, 1)[bias_at(i / n, i % n)];
    out<float>(c, 0)[i] = wants_erf(c) ? gelu_erf(x) : gelu_tanh(x);
  }
  return HPCDL_OK;
}

// ---- broken ----

int constant(const hpcdl_call* c) {
  return map_any(c, [](float) { return 0.5f; });
}
int always_tanh(const hpcdl_call* c) { return map_any(c, gelu_tanh); }
/// Aligned vector loads: the compiler may assume 64 bytes.
int needs_alignment(const hpcdl_call* c) {
  const auto address = reinterpret_cast<std::uintptr_t>(c->inputs[0].data);
  if (address % 16 != 0) __builtin_trap();  // what movaps does
  return gelu(c);
}
int last_element_missing(const hpcdl_call* c) {
  for (std::int64_t i = 0; i + 1 < size(c->inputs[0]); ++i) out<float>(c, 0)[i] = relu(in<float>(c, 0)[i]);
  return HPCDL_OK;
}
/// Loads whole vectors of four, even if fewer elements are left.
int reads_behind(const hpcdl_call* c) {
  const volatile float* x = in<float>(c, 0);
  const auto n = size(c->inputs[0]);
  for (std::int64_t i = 0; i < n; i += 4) {
    float v[4];
    for (int k = 0; k < 4; ++k) v[k] = x[i + k];
    for (int k = 0; k < 4 && i + k < n; ++k) out<float>(c, 0)[i + k] = relu(v[k]);
  }
  return HPCDL_OK;
}
int flushes_denormals(const hpcdl_call* c) {
  return map_any(c, [](float x) { return x != x || x >= 1.17549435e-38f ? x : 0.0f; });
}
int nan_to_zero(const hpcdl_call* c) {
  return map_any(c, [](float x) { return x > 0 ? x : 0.0f; });
}
int adds_to_output(const hpcdl_call* c) {
  for (std::int64_t i = 0; i < size(c->inputs[0]); ++i) {
    float& y = out<float>(c, 0)[i];
    y = (y != y ? 0 : y) + in<float>(c, 0)[i] + in<float>(c, 1)[i];
  }
  return HPCDL_OK;
}
/// Computes in its input, and copies.
int changes_input(const hpcdl_call* c) {
  auto* a = static_cast<float*>(c->inputs[0].data);
  const auto n = size(c->inputs[0]);
  for (std::int64_t i = 0; i < n; ++i) out<float>(c, 0)[i] = a[i] += in<float>(c, 1)[i];
  return HPCDL_OK;
}
int rounds_to_bf16(const hpcdl_call* c) {
  for (std::int64_t i = 0; i < size(c->inputs[0]); ++i)
    out<float>(c, 0)[i] = bf16(in<float>(c, 0)[i] + in<float>(c, 1)[i]);
  return HPCDL_OK;
}
/// Computes only the part that divides evenly among the threads.
int rest_of_threads(const hpcdl_call* c) {
  std::vector<std::thread> team;
  const auto share = size(c->inputs[0]) / c->threads;
  for (int t = 0; t < c->threads; ++t)
    team.emplace_back([=] {
      for (auto i = share * t; i < share * (t + 1); ++i) out<float>(c, 0)[i] = in<float>(c, 0)[i] + in<float>(c, 1)[i];
    });
  for (auto& t : team) t.join();
  return HPCDL_OK;
}
/// Claims to work in place, but reads what it has overwritten: the output is the input moved by one, added back.
int not_in_place(const hpcdl_call* c) {
  const auto n = size(c->inputs[0]);
  float* y = out<float>(c, 0);
  for (std::int64_t i = 0; i < n; ++i) y[n - 1 - i] = in<float>(c, 1)[n - 1 - i];
  for (std::int64_t i = 0; i < n; ++i) y[i] += in<float>(c, 0)[i];
  return HPCDL_OK;
}
int swapped_gate(const hpcdl_call* c) {
  hpcdl_tensor swapped[2] = {c->inputs[1], c->inputs[0]};
  hpcdl_call copy = *c;
  copy.inputs = swapped;
  return swiglu(&copy);
}
int fails(const hpcdl_call* c) { return size(c->inputs[0]) > 1000 ? 12 : swiglu(c); }

}  // namespace

void add_elementwise(Corpus& list) {
  Adder g{list, "gelu"};
  g.good("naive", gelu, kBoth, HPCDL_IN_PLACE | HPCDL_SAME_BITS_ANY_THREADS);
  g.good(
      "sigmoid_form",
      [](const hpcdl_call* c) { return wants_erf(c) ? map_any(c, gelu_erf) : map_any(c, gelu_sigmoid); }, kBoth);
  g.bad("constant", "the output is a constant", constant);
  g.bad("always_tanh", "the tanh form where erf was asked for", always_tanh);
  g.bad("needs_alignment", "assumes aligned pointers", needs_alignment);
  Adder r{list, "relu"};
  r.good("naive", relu_naive, kBoth, HPCDL_IN_PLACE);
  r.good("backwards", relu_backwards);
  r.bad("last_element_missing", "the last element is not written", last_element_missing);
  r.bad("reads_behind", "reads past the end of its input", reads_behind);
  r.bad("flushes_denormals", "denormals become zero", flushes_denormals);
  r.bad("nan_to_zero", "NaN becomes zero", nan_to_zero, kBoth);
  r.bad("product_mask", "infinity times a mask of zero is NaN", relu_branchless);
  Adder a{list, "add"};
  a.good("naive", add_naive, kBoth, HPCDL_IN_PLACE);
  a.good("blocks", add_blocks);
  a.good("threads", add_threads, kF32, HPCDL_SAME_BITS_ANY_THREADS | HPCDL_IN_PLACE);
  a.bad("adds_to_output", "adds to what lies in the output", adds_to_output);
  a.bad("changes_input", "writes into its input", changes_input);
  a.bad("rounds_to_bf16", "keeps 8 bits of a float", rounds_to_bf16);
  a.bad("rest_of_threads", "no thread computes the remainder", rest_of_threads);
  a.bad("not_in_place", "claims to work in place, and does not", not_in_place, kF32, HPCDL_IN_PLACE);
  Adder b{list, "bias_gelu"};
  b.good("naive", [](const hpcdl_call* c) { return bias_gelu(c, [](std::int64_t, std::int64_t col) { return col; }); });
  b.bad("bias_by_row", "the bias of the wrong dimension", [](const hpcdl_call* c) {
    return bias_gelu(c, [n = cols(c->inputs[1])](std::int64_t row, std::int64_t) { return row % n; });
  });
  Adder s{list, "swiglu"};
  s.good("naive", swiglu, kBoth);
  s.bad("swapped_gate", "gate and value are swapped", swapped_gate);
  s.bad("fails", "returns an error code for large inputs", fails);
}

}  // namespace hpcdl::lab::verify::planted

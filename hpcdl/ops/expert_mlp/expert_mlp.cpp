#include "hpcdl/ops/expert_mlp/expert_mlp.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "hpcdl/core/convert.h"

namespace hpcdl {
namespace {

/// The rows that chose an expert, and the weights that they give it.
struct Chosen {
  std::vector<std::int64_t> rows;
  std::vector<float> weights;

  Chosen(const View& list, const View& of, int expert) {
    const auto count = list.cols();
    for (std::int64_t i = 0; i < list.size(); ++i)
      if (list.ptr<std::int32_t>()[i] == expert) rows.push_back(i / count), weights.push_back(of.ptr<float>()[i]);
  }
  std::int64_t size() const { return std::ssize(rows); }
};

Tensor first_rows(const Tensor& t, std::int64_t rows) { return {t.data(), {{rows, t.cols()}, t.dtype()}, t.device()}; }

/// multiply() with as much of the scratch as these rows need.
void product(Stream& s, const Tensor& y, const View& x, const Matrix<View>& m, const Tensor& values,
             const Tensor& groups, bool constant) {
  int4::Scratch scratch{};
  if (m.quantized()) {
    const Spec half{{x.rows(), m.scale[1]}, DType::f32}, sums{half.shape, DType::i32};
    scratch = {Tensor(values.data(), {{x.rows(), x.cols()}, DType::i8}, values.device()),
               Tensor(groups.data(), half, groups.device()),
               Tensor(groups.ptr<float>() + half.size(), sums, groups.device())};
  }
  multiply(s, y, x, m, scratch, constant);
}

}  // namespace

Spec ExpertMlp::infer(const Spec& base, const Spec& x, const Spec& weights, const Spec& experts, const Spec& gate,
                      const Spec& gate_scale, const Spec& gate_offset, const Spec& gate_bias, const Spec& up,
                      const Spec& up_scale, const Spec& up_offset, const Spec& up_bias, const Spec& down,
                      const Spec& down_scale, const Spec& down_offset, const Spec& down_bias, const Args& a) {
  const Spec hidden = matrix_spec(name, x, {gate, gate_scale, gate_offset, gate_bias});
  require_spec(name, "up", matrix_spec(name, x, {up, up_scale, up_offset, up_bias}), hidden);
  require_spec(name, "down", matrix_spec(name, hidden, {down, down_scale, down_offset, down_bias}), x);
  require_spec(name, "base", base, x);
  const auto rows = x[-1] > 0 ? x.size() / x[-1] : 0;
  require(weights.dtype == DType::f32 && weights[-1] > 0 && weights.size() / weights[-1] == rows, name,
          "weights must be F32 of {} rows, got {}", rows, to_string(weights));
  require_spec(name, "experts", experts, {weights.shape, DType::i32});
  require(a.expert >= 0, name, "there is no expert {}", a.expert);
  return x;
}

Cost ExpertMlp::cost(const Spec&, const Spec& x, const Spec&, const Spec&, const Spec& gate, const Spec& gate_scale,
                     const Spec& gate_offset, const Spec& gate_bias, const Spec& up, const Spec& up_scale,
                     const Spec& up_offset, const Spec& up_bias, const Spec& down, const Spec& down_scale,
                     const Spec& down_offset, const Spec& down_bias, const Args&) {
  const Matrix<Spec> first{gate, gate_scale, gate_offset, gate_bias};
  Cost c = matrix_cost(x, first);
  c += matrix_cost(x, {up, up_scale, up_offset, up_bias});
  c += matrix_cost(matrix_spec(name, x, first), {down, down_scale, down_offset, down_bias});
  return c;
}

std::array<Spec, 4> ExpertMlp::scratch(const Spec&, const Spec& x, const Spec&, const Spec&, const Spec& gate,
                                       const Spec& gate_scale, const Spec& gate_offset, const Spec& gate_bias,
                                       const Spec&, const Spec&, const Spec&, const Spec&, const Spec&,
                                       const Spec& down_scale, const Spec&, const Spec&, const Args&) {
  const Spec hidden = matrix_spec(name, x, {gate, gate_scale, gate_offset, gate_bias});
  const auto rows = x[-1] > 0 ? x.size() / x[-1] : 0, K = x[-1], N = hidden[-1];
  const bool quantized = gate_scale || down_scale;
  const auto groups = std::max(gate_scale ? gate_scale[1] : 0, down_scale ? down_scale[1] : 0);
  return {Spec{{rows, K}, x.dtype}, Spec{{2 * rows, N}, x.dtype},
          Spec{{quantized ? rows : 0, std::max(K, N)}, DType::i8}, Spec{{2, quantized ? rows : 0, groups}, DType::f32}};
}

void ExpertMlp::forward(Stream& s, Tensor y, View base, View x, View weights, View experts, View gate, View gate_scale,
                        View gate_offset, View gate_bias, View up, View up_scale, View up_offset, View up_bias,
                        View down, View down_scale, View down_offset, View down_bias, Tensor rows, Tensor hidden,
                        Tensor values, Tensor groups, const Args& a) {
  const Matrix<View> first{gate, gate_scale, gate_offset, gate_bias}, second{up, up_scale, up_offset, up_bias},
      last{down, down_scale, down_offset, down_bias};
#if HPCDL_CUDA
  if (s.device().is_cuda()) return cuda::expert_mlp(s, y, base, x, weights, experts, first, second, last, hidden, a);
#endif
  const auto bytes = static_cast<std::size_t>(x.cols() * dtype_bytes(x.dtype()));
  const auto row_of = [&](const View& v, std::int64_t r) {
    return const_cast<std::byte*>(v.ptr<std::byte>()) + r * v.row_stride() * dtype_bytes(v.dtype());
  };
  if (y.data() != base.data())
    for (std::int64_t r = 0; r < y.rows(); ++r) std::memcpy(row_of(y, r), row_of(base, r), bytes);
  const Chosen chosen(experts, weights, a.expert);
  const auto n = chosen.size();
  if (n == 0) return;
  const Tensor in = first_rows(rows, n), h = first_rows(hidden, n),
               u(hidden.ptr<std::byte>() + h.bytes(), h.spec(), h.device());
  for (std::int64_t i = 0; i < n; ++i)
    std::memcpy(row_of(in, i), row_of(x, chosen.rows[static_cast<std::size_t>(i)]), bytes);
  product(s, h, in, first, values, groups, a.constant_weights);
  product(s, u, in, second, values, groups, a.constant_weights);
  Swiglu::forward(s, h, h, u, {a.gate});
  product(s, in, h, last, values, groups, a.constant_weights);
  visit_dtype(x.dtype(), [&]<class T>() {
    for (std::int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      auto* to = reinterpret_cast<T*>(row_of(y, chosen.rows[at]));
      const auto* from = reinterpret_cast<const T*>(row_of(in, i));
      for (std::int64_t c = 0; c < x.cols(); ++c)
        to[c] = T(static_cast<float>(to[c]) + chosen.weights[at] * static_cast<float>(from[c]));
    }
  });
}

}  // namespace hpcdl

#include "hpcdl/ops/expert_mlp/expert_mlp.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "hpcdl/core/convert.h"
#include "hpcdl/ops/add/add.h"
#include "hpcdl/ops/expert_mlp/expert_operands.h"

namespace hpcdl {
namespace {

using Mlps = std::span<const ExpertMatrices<Spec>>;

std::int64_t tokens_in(const Spec& x) { return x[-1] > 0 ? x.size() / x[-1] : 0; }

/// The rows that chose an expert, and the weights that they give it.
struct Chosen {
  std::vector<std::int64_t> choices, rows;
  std::vector<float> weights;

  Chosen(const View& list, const View& of, int expert) {
    const auto count = list.cols();
    for (std::int64_t i = 0; i < list.size(); ++i)
      if (list.ptr<std::int32_t>()[i] == expert)
        choices.push_back(i), rows.push_back(i / count), weights.push_back(of.ptr<float>()[i]);
  }
  std::int64_t size() const { return std::ssize(rows); }
};

Tensor first_rows(const Tensor& t, std::int64_t rows) { return {t.data(), {{rows, t.cols()}, t.dtype()}, t.device()}; }

/// multiply() with as much of the scratch as these rows need.
void product(Stream& s, const Tensor& y, const View& x, const Matrix<View>& m, const Tensor& memory, bool constant) {
  int4::Scratch scratch{};
  if (m.quantized()) {
    const Spec half{{x.rows(), m.scale[1]}, DType::f32}, sums{half.shape, DType::i32};
    auto* at = memory.ptr<std::byte>();
    const auto take = [&](const Spec& spec) {
      const Tensor t(at, spec, memory.device());
      at += spec.bytes();
      return t;
    };
    scratch.steps = take(half), scratch.sums = take(sums);
    scratch.values = take({{x.rows(), x.cols()}, DType::i8});
  }
  multiply(s, y, x, m, scratch, constant);
}

std::byte* row_of(const View& v, std::int64_t r) {
  return const_cast<std::byte*>(v.ptr<std::byte>()) + r * v.row_stride() * dtype_bytes(v.dtype());
}

std::size_t row_bytes(const View& v) { return static_cast<std::size_t>(v.cols() * dtype_bytes(v.dtype())); }

/// The operands of forward on a CPU.
struct OnCpu {
  Tensor y, gate, up;
  View x, weights, experts;
  Tensor rows, hidden, int4;
  ExpertMlp::Args args;

  /// Adds what one expert gives to the rows that chose it.
  void add(Stream& s, const ExpertMatrices<View>& mlp, int expert) const {
    const Chosen chosen(experts, weights, expert);
    const auto n = chosen.size();
    if (n == 0) return;
    const auto bytes = row_bytes(x);
    const Tensor in = first_rows(rows, n), h = first_rows(hidden, n),
                 u(hidden.ptr<std::byte>() + h.bytes(), h.spec(), h.device());
    for (std::int64_t i = 0; i < n; ++i)
      std::memcpy(row_of(in, i), row_of(x, chosen.rows[static_cast<std::size_t>(i)]), bytes);
    product(s, h, in, mlp.gate, int4, args.constant_weights);
    product(s, u, in, mlp.up, int4, args.constant_weights);
    if (gate) {
      keep(gate, h, chosen);
      keep(up, u, chosen);
    }
    Swiglu::forward(s, h, h, u, {args.gate});
    product(s, in, h, mlp.down, int4, args.constant_weights);
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

 private:
  /// Copies rows to those of their choices.
  static void keep(const Tensor& to, const Tensor& from, const Chosen& chosen) {
    for (std::int64_t i = 0; i < chosen.size(); ++i)
      std::memcpy(row_of(to, chosen.choices[static_cast<std::size_t>(i)]), row_of(from, i), row_bytes(from));
  }
};

View view(const Grad& t) { return t ? View(t) : View(); }

}  // namespace

void ExpertMlp::require_operands(const Spec& base, const Spec& x, const Spec& weights, const Spec& experts, Mlps mlps) {
  require(!mlps.empty() && std::ssize(mlps) <= kMostExperts, name, "expected 1 to {} experts, got {}", kMostExperts,
          mlps.size());
  const Spec hidden = matrix_spec(name, x, mlps[0].gate);
  for (const auto& m : mlps) {
    require_spec(name, "gate", matrix_spec(name, x, m.gate), hidden);
    require_spec(name, "up", matrix_spec(name, x, m.up), hidden);
    require_spec(name, "down", matrix_spec(name, hidden, m.down), x);
  }
  if (base) require_spec(name, "base", base, x);
  require(weights.dtype == DType::f32 && weights[-1] > 0 && weights.size() / weights[-1] == tokens_in(x), name,
          "weights must be F32 of {} rows, got {}", tokens_in(x), to_string(weights));
  require_spec(name, "experts", experts, {weights.shape, DType::i32});
}

ExpertMlp::Scratch ExpertMlp::scratch(const Spec& x, const Spec& experts, Mlps mlps) {
  const auto rows = tokens_in(x), count = experts[-1], K = x[-1], N = matrix_spec(name, x, mlps[0].gate)[-1];
  std::int64_t groups = 0;
  for (const auto& m : mlps)
    for (const auto* matrix : {&m.gate, &m.up, &m.down})
      if (matrix->quantized()) groups = std::max(groups, matrix->scale[1]);
  return {.rows = {{rows * count, K}, x.dtype},
          .hidden = {{rows * std::max<std::int64_t>(2, count), N}, x.dtype},
          .int4 = {{groups > 0 ? rows : 0, 2 * groups * 4 + std::max(K, N)}, DType::u8},
          .places = {{std::ssize(mlps), 1 + rows * count}, DType::i32}};
}

ExpertMlp::BackwardScratch ExpertMlp::backward_scratch(const Spec& x, const Spec& experts,
                                                       const ExpertMatrices<Spec>& mlp, std::int64_t mlps) {
  const auto choices = experts.size(), K = x[-1], N = matrix_spec(name, x, mlp.gate)[-1];
  const auto most = choices + std::min(choices, mlps) * (kRowTile - 1),
             rows = (most + kRowTile - 1) / kRowTile * kRowTile;
  return {.rows = {{2, rows, K}, x.dtype},
          .hidden = {{3, rows, N}, x.dtype},
          .places = {{mlps + 1, 1 + choices}, DType::i32}};
}

Cost ExpertMlp::cost(const Spec& x, std::int64_t choices, Mlps mlps) {
  Spec chosen = x;  // the rows of all choices
  chosen.shape = {choices, x[-1]};
  const auto& m = mlps[0];
  Cost c = matrix_cost(chosen, m.gate);
  c += matrix_cost(chosen, m.up);
  c += matrix_cost(matrix_spec(name, chosen, m.gate), m.down);
  const double share = std::min(1.0, static_cast<double>(chosen.shape[0]) / static_cast<double>(mlps.size()));
  for (const auto& of : mlps)
    for (const auto* matrix : {&of.gate, &of.up, &of.down})
      for (const Spec* part : {&matrix->w, &matrix->scale, &matrix->offset, &matrix->bias})
        if (*part) c.reads -= (1 - share) * static_cast<double>(part->bytes());
  return c;
}

void ExpertMlp::forward(Stream& s, const Grad* o, const void* args) {
  const auto& a = *static_cast<const Args*>(args);
  const Grad *in = o + detail::kMixtureOutputs, *scratch = in + kFixed + a.experts * kOfExpert;
  const auto mlps = detail::mixture_matrices<View>(a.experts, [&](std::size_t i) { return view(in[i]); });
  const Tensor &y = o[0], &gate = o[1], &up = o[2];
  const View base = a.addend ? View() : view(in[0]), x = in[1], weights = in[2], experts = in[3];
#if HPCDL_CUDA
  if (s.device().is_cuda())
    return cuda::expert_mlp(s, y, gate, up, base, x, weights, experts, mlps, scratch[0], scratch[1], scratch[3], a);
#endif
  for (std::int64_t r = 0; r < y.rows(); ++r) {
    if (base) std::memcpy(row_of(y, r), row_of(base, r), row_bytes(x));
    else std::memset(row_of(y, r), 0, row_bytes(x));
  }
  const OnCpu operands{y, gate, up, x, weights, experts, scratch[0], scratch[1], scratch[2], a};
  for (int e = 0; e < a.experts; ++e) operands.add(s, mlps[static_cast<std::size_t>(e)], e);
}

void ExpertMlp::backward(Stream& s, const Grad* o, const void* args) {
  const auto& a = *static_cast<const Args*>(args);
  const auto experts = static_cast<std::size_t>(a.experts);
  ExpertGradients g{.dbase = o[0],
                    .dx = o[1],
                    .dweights = o[2],
                    .dmlps = {},
                    .x = {},
                    .weights = {},
                    .experts = {},
                    .mlps = {},
                    .gate = {},
                    .up = {},
                    .dy = {},
                    .rows = {},
                    .hidden = {},
                    .places = {}};
  o += 3;
  for (std::size_t e = 0; e < experts; ++e, o += 3)
    g.dmlps.push_back({{o[0], {}, {}, {}}, {o[1], {}, {}, {}}, {o[2], {}, {}, {}}});
  g.x = o[0], g.weights = o[1], g.experts = o[2];
  o += 3;
  for (std::size_t e = 0; e < experts; ++e, o += 3)
    g.mlps.push_back({{o[0], {}, {}, {}}, {o[1], {}, {}, {}}, {o[2], {}, {}, {}}});
  g.gate = o[0], g.up = o[1], g.dy = o[2], g.rows = o[3], g.hidden = o[4], g.places = o[5];
  if (g.dbase) Add::backward(s, g.dbase, {}, g.dy, {});
#if HPCDL_CUDA
  if (s.device().is_cuda()) return cuda::expert_mlp_backward(s, g, a);
#endif
  cpu::expert_mlp_backward(s, g, a);
}

}  // namespace hpcdl

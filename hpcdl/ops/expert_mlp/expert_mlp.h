#pragma once
// The experts of a mixture: y = base, plus for each expert that a token chose, its weight times
// ((act(x Wg^T) * (x Wu^T)) Wd^T). Inference only.
//
// base, y (..., K); without base, only the sum. x (..., K), of the type of y. weights f32, experts i32: (..., count), as moe_route() gives them; each
// token chooses an expert at most once. gate and up: (N, K), down: (K, N) of each expert, dense or INT4, with biases or
// not (ops/matrix.h). On a CPU the rows that chose an expert are copied and multiplied by the kernels of linear or
// int4_linear. On a GPU one launch multiplies the rows of all experts, and the weights of experts that no token chose
// are not read; matrices have no biases, all of a kind have one format, and dense ones have the type of x. There INT4
// weights are widened to f32, or, if many rows are multiplied in 16 bits, rounded to the type of x.

#include <span>
#include <vector>

#include "hpcdl/ops/matrix.h"
#include "hpcdl/ops/places.h"
#include "hpcdl/ops/swiglu/swiglu.h"
#include "hpcdl/program/emit.h"

namespace hpcdl {

template <class T> struct ExpertMatrices {
  Matrix<T> gate, up, down;
};

struct ExpertMlp {
  static constexpr std::string_view name = "expert_mlp";
  static constexpr int kMostExperts = 512;
  struct Args {
    int experts = 0;
    Swiglu::Gate gate = Swiglu::Gate::silu;
    bool constant_weights = false;  // the matrices are not written while programs run
  };
  /// Operands: y, base, x, weights, experts, those of Scratch; then of each expert gate, up, down: w, scale, offset, bias
  /// (may be absent).
  struct Scratch {
    Spec rows;            // of a CPU, the chosen rows of x, later their results; of a GPU, the results of all choices
    Spec hidden;          // hidden values, then on a CPU those of up
    Spec values, groups;  // for INT4 the rounded operand: its values, then for each group its step and its sum
    Spec places;          // of a GPU, for each expert how many chose it, and which choices those are
  };
  static constexpr int kFixed = 10, kOfExpert = 12;
  using RecordArgs = Args;

  static Scratch scratch(const Spec& x, const Spec& experts, std::span<const ExpertMatrices<Spec>> mlps);
  /// Checks the operands.
  static void require_operands(const Spec& base, const Spec& x, const Spec& weights, const Spec& experts,
                               std::span<const ExpertMatrices<Spec>> mlps);
  /// Weights of experts that cannot all be chosen count by the share that can be; scratch does not count.
  static Cost cost(const Spec& x, const Spec& experts, std::span<const ExpertMatrices<Spec>> mlps);
  static void run(Stream& s, const Grad* operands, const void* args);
  static void check_record(const RawRecord& r);
};

namespace cuda {
void expert_mlp(Stream&, Tensor y, View base, View x, View weights, View experts,
                std::span<const ExpertMatrices<View>> mlps, Tensor results, Tensor hidden, Tensor places,
                const ExpertMlp::Args& a);
}  // namespace cuda

/// base may be absent. A gate of `silu` or `gelu_tanh`; `mlps`: at least one, at most ExpertMlp::kMostExperts.
template <Symbolic V>
V expert_mlp(const V& base, const V& x, const V& weights, const V& experts, std::span<const ExpertMatrices<V>> mlps,
             ExpertMlp::Args a) {
  require_no_gradient(ExpertMlp::name, x);
  const auto spec_of = [](const V& v) { return v ? v.spec() : Spec(); };
  const auto specs_of = [&](const Matrix<V>& m) {
    return Matrix<Spec>{spec_of(m.w), spec_of(m.scale), spec_of(m.offset), spec_of(m.bias)};
  };
  std::vector<ExpertMatrices<Spec>> specs;
  for (const auto& m : mlps) specs.push_back({specs_of(m.gate), specs_of(m.up), specs_of(m.down)});
  ExpertMlp::require_operands(spec_of(base), x.spec(), weights.spec(), experts.spec(), specs);
  auto& g = x.graph();
  const V y = g.temporary("experts", x.spec());
  using GraphOperand = decltype(write_operand(y));
  std::vector<GraphOperand> operands{write_operand(y), base ? read_operand(base) : GraphOperand(), read_operand(x),
                                     read_operand(weights), read_operand(experts)};
  const auto scratch = ExpertMlp::scratch(x.spec(), experts.spec(), specs);
  for (const Spec& s : {scratch.rows, scratch.hidden, scratch.values, scratch.groups, scratch.places})
    operands.push_back(write_operand(g.temporary("experts.scratch", s)));
  for (const auto& m : mlps)
    for (const auto* matrix : {&m.gate, &m.up, &m.down})
      for (const V* v : {&matrix->w, &matrix->scale, &matrix->offset, &matrix->bias})
        operands.push_back(*v ? read_operand(*v) : GraphOperand());
  a.experts = static_cast<int>(mlps.size());
  clear_padding(a);
  g.template emit<ExpertMlp>(std::span<const GraphOperand>(operands), &a, sizeof a,
                             ExpertMlp::cost(x.spec(), experts.spec(), specs));
  return y;
}

}  // namespace hpcdl

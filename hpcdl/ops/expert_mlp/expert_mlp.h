#pragma once
// The experts of a mixture: y = base, plus for each expert that a token chose, its weight times
// ((act(x Wg^T) * (x Wu^T)) Wd^T).
//
// base, y (..., K); without base, only the sum. x (..., K), of the type of y. weights f32, experts i32: (..., count), as moe_route() gives them; each
// token chooses an expert at most once. A negative expert is no choice. gate and up: (N, K), down: (K, N) of each expert, dense or INT4, with biases or
// not (ops/matrix.h). On a CPU the rows that chose an expert are copied and multiplied by the kernels of linear or
// int4_linear. On a GPU one launch multiplies the rows of all experts, and the weights of experts that no token chose
// are not read; matrices have no biases, all of a kind have one format, and dense ones have the type of x. There INT4
// weights are widened to f32, or, if many rows are multiplied in 16 bits, rounded to the type of x.
//
// A choice is one expert of one token: choice c is the c % count-th of token c / count. The gradient needs dense
// matrices without biases, and the products x Wg^T and x Wu^T of each choice, which forward keeps for it. Its products
// read the rows of dy and x expert by expert, and every sum has an order that depends only on the choices.

#include <span>
#include <vector>

#include "hpcdl/op_info.h"
#include "hpcdl/ops/matrix.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/ops/swiglu/swiglu.h"

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
    bool addend = false;       // a summand of a sum over ranks: another rank adds base, whose gradient is unchanged
    std::int64_t choices = 0;  // that cost() expects, if many are negative; 0: all
  };
  /// Inputs: base, x, weights, experts; then of each expert gate, up, down: w, scale, offset, bias (may be absent).
  static constexpr int kFixed = 4, kOfExpert = 12;
  /// Scratch of forward.
  struct Scratch {
    Spec rows;    // of a CPU, the chosen rows of x, later their results; of a GPU, the results of all choices
    Spec hidden;  // hidden values, then on a CPU those of up
    Spec int4;    // of a CPU, for INT4: for each group of the rounded operand its step and its sum, then its values
    Spec places;  // of a GPU, for each expert how many chose it, and which choices those are
  };
  /// Scratch of backward. Rows are those of choices, expert by expert; on a GPU the rows of each expert begin at a
  /// multiple of kRowTile, and those after its last are zero.
  struct BackwardScratch {
    Spec rows;    // of x; of dy, later of dx
    Spec hidden;  // weighted hidden values, then gradients of gate and up
    Spec places;  // where each expert begins, its choices, the row of each choice
  };
  static constexpr std::int64_t kRowTile = 64;

  /// The op with this number of experts, which determines the number of its operands. Throws Error for one out of
  /// range.
  static const OpInfo& info(int experts);
  static Scratch scratch(const Spec& x, const Spec& experts, std::span<const ExpertMatrices<Spec>> mlps);
  static BackwardScratch backward_scratch(const Spec& x, const Spec& experts, const ExpertMatrices<Spec>& mlp,
                                          std::int64_t mlps);
  /// Checks the operands.
  static void require_operands(const Spec& base, const Spec& x, const Spec& weights, const Spec& experts,
                               std::span<const ExpertMatrices<Spec>> mlps);
  /// Weights of experts that cannot all be chosen count by the share that can be.
  static Cost cost(const Spec& x, std::int64_t choices, std::span<const ExpertMatrices<Spec>> mlps);
  /// Operands: y, gate and up of each choice (may be absent), inputs, scratch.
  static void forward(Stream& s, const Grad* operands, const void* args);
  /// Operands: gradients of base, x, weights, and gate, up, down of each expert; x, weights, experts, gate, up, down of
  /// each expert; gate and up of each choice; dy; scratch.
  static void backward(Stream& s, const Grad* operands, const void* args);
};
/// So that programs from files find the op.
inline const bool kKnowsExpertMlp = (ExpertMlp::info(1), true);

/// The operands of backward.
struct ExpertGradients {
  Grad dbase, dx, dweights;
  std::vector<ExpertMatrices<Grad>> dmlps;
  View x, weights, experts;
  std::vector<ExpertMatrices<View>> mlps;
  View gate, up, dy;
  Tensor rows, hidden, places;
};

namespace cpu {
void expert_mlp_backward(Stream&, const ExpertGradients& g, const ExpertMlp::Args& a);
}  // namespace cpu
namespace cuda {
/// `gate` and `up` may be absent.
void expert_mlp(Stream&, Tensor y, Tensor gate, Tensor up, View base, View x, View weights, View experts,
                std::span<const ExpertMatrices<View>> mlps, Tensor results, Tensor hidden, Tensor places,
                const ExpertMlp::Args& a);
void expert_mlp_backward(Stream&, const ExpertGradients& g, const ExpertMlp::Args& a);
}  // namespace cuda

/// base may be absent. A gate of `silu` or `gelu_tanh`; `mlps`: at least one, at most ExpertMlp::kMostExperts.
template <Symbolic V>
V expert_mlp(const V& base, const V& x, const V& weights, const V& experts, std::span<const ExpertMatrices<V>> mlps,
             ExpertMlp::Args a) {
  std::vector<V> in{base, x, weights, experts};
  for (const auto& m : mlps)
    for (const auto* matrix : {&m.gate, &m.up, &m.down}) {
      for (const V* v : {&matrix->w, &matrix->scale, &matrix->offset, &matrix->bias}) in.push_back(*v);
      require(!x.graph().wants_gradient(x) || (!matrix->quantized() && !matrix->bias), ExpertMlp::name,
              "a gradient needs dense matrices without biases: quantised experts cannot be trained through");
    }
  a.experts = static_cast<int>(mlps.size());
  clear_padding(a);
  return x.graph().apply(ExpertMlp::info(a.experts), std::span<const V>(in), &a)[0];
}

}  // namespace hpcdl

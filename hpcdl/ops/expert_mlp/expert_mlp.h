#pragma once
// One expert of a mixture: y = base, plus weight * ((act(x Wg^T) * (x Wu^T)) Wd^T) in the rows whose token chose it.
// Inference only.
//
// base, y (..., K), which may be one memory: the sum over the experts so far. x (..., K), of the type of y. weights f32,
// experts i32: (..., count), as moe_route() gives them; each token chooses an expert at most once. gate and up: (N, K),
// down: (K, N), dense or INT4, with biases or not (ops/matrix.h); on a GPU dense, without biases, of the type of x. On a
// CPU the chosen rows are copied and multiplied by the kernels of linear or int4_linear.

#include "hpcdl/ops/matrix.h"
#include "hpcdl/ops/places.h"
#include "hpcdl/ops/swiglu/swiglu.h"

namespace hpcdl {

struct ExpertMlp {
  static constexpr std::string_view name = "expert_mlp";
  static constexpr bool kInPlace = true;
  struct Args {
    int expert = 0;
    Swiglu::Gate gate = Swiglu::Gate::silu;
    bool constant_weights = false;  // the matrices are not written while programs run
  };
  static Spec infer(const Spec& base, const Spec& x, const Spec& weights, const Spec& experts, const Spec& gate,
                    const Spec& gate_scale, const Spec& gate_offset, const Spec& gate_bias, const Spec& up,
                    const Spec& up_scale, const Spec& up_offset, const Spec& up_bias, const Spec& down,
                    const Spec& down_scale, const Spec& down_offset, const Spec& down_bias, const Args& a);
  /// Counts all rows, since how many choose it is not known here.
  static Cost cost(const Spec& base, const Spec& x, const Spec& weights, const Spec& experts, const Spec& gate,
                   const Spec& gate_scale, const Spec& gate_offset, const Spec& gate_bias, const Spec& up,
                   const Spec& up_scale, const Spec& up_offset, const Spec& up_bias, const Spec& down,
                   const Spec& down_scale, const Spec& down_offset, const Spec& down_bias, const Args& a);
  /// The chosen rows of x, later their results; the hidden values, then those of up; for INT4 the rounded operand: its
  /// values, then for each group its step and its sum.
  static std::array<Spec, 4> scratch(const Spec& base, const Spec& x, const Spec& weights, const Spec& experts,
                                     const Spec& gate, const Spec& gate_scale, const Spec& gate_offset,
                                     const Spec& gate_bias, const Spec& up, const Spec& up_scale, const Spec& up_offset,
                                     const Spec& up_bias, const Spec& down, const Spec& down_scale,
                                     const Spec& down_offset, const Spec& down_bias, const Args& a);
  static void forward(Stream& s, Tensor y, View base, View x, View weights, View experts, View gate, View gate_scale,
                      View gate_offset, View gate_bias, View up, View up_scale, View up_offset, View up_bias, View down,
                      View down_scale, View down_offset, View down_bias, Tensor rows, Tensor hidden, Tensor values,
                      Tensor groups, const Args& a);
};

namespace cuda {
void expert_mlp(Stream&, Tensor y, View base, View x, View weights, View experts, const Matrix<View>& gate,
                const Matrix<View>& up, const Matrix<View>& down, Tensor hidden, const ExpertMlp::Args& a);
}  // namespace cuda

template <Symbolic V>
V expert_mlp(const V& base, const V& x, const V& weights, const V& experts, const Matrix<V>& gate, const Matrix<V>& up,
             const Matrix<V>& down, ExpertMlp::Args a) {
  require_no_gradient(ExpertMlp::name, x);
  return record<ExpertMlp>(a, base, x, weights, experts, gate.w, gate.scale, gate.offset, gate.bias, up.w, up.scale,
                           up.offset, up.bias, down.w, down.scale, down.offset, down.bias);
}

}  // namespace hpcdl

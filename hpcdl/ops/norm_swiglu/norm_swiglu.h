#pragma once
// y = silu(h Wg^T + bg) * (h Wu^T + bu) with h = rms_norm(x): the first half of a gated MLP as one op for decoding,
// where each launch costs more than its arithmetic. Inference only.
//
// x (..., K); gamma (K); both matrices (N, K), dense or INT4, with biases or not (ops/matrix.h); y (..., N), of
// the type of x. A GPU has one kernel for one row of 16 bits, and for up to 64 rows and dense matrices rms_norm and one
// kernel; whatever else is computed as rms_norm, linear or int4_linear, and swiglu do, with the same bits. h, gate and up
// are rounded to the type of x in any case.

#include "hpcdl/ops/matrix.h"

namespace hpcdl {

struct NormSwiglu {
  static constexpr std::string_view name = "norm_swiglu";
  struct Args {
    float eps = 1e-5f;
    bool constant_weights = false;  // the matrices are not written while programs run: a GPU may read them early
  };
  static Spec infer(const Spec& x, const Spec& gamma, const Spec& gate, const Spec& gate_scale, const Spec& gate_offset,
                    const Spec& gate_bias, const Spec& up, const Spec& up_scale, const Spec& up_offset,
                    const Spec& up_bias, const Args& a);
  static Cost cost(const Spec& x, const Spec& gamma, const Spec& gate, const Spec& gate_scale, const Spec& gate_offset,
                   const Spec& gate_bias, const Spec& up, const Spec& up_scale, const Spec& up_offset,
                   const Spec& up_bias, const Args& a);
  /// h, up, and for INT4 the rounded h: its values, then for each group its step and its sum.
  static std::array<Spec, 4> scratch(const Spec& x, const Spec& gamma, const Spec& gate, const Spec& gate_scale,
                                     const Spec& gate_offset, const Spec& gate_bias, const Spec& up,
                                     const Spec& up_scale, const Spec& up_offset, const Spec& up_bias, const Args& a);
  static void forward(Stream& s, Tensor y, View x, View gamma, View gate, View gate_scale, View gate_offset,
                      View gate_bias, View up, View up_scale, View up_offset, View up_bias, Tensor h, Tensor up_y,
                      Tensor values, Tensor groups, const Args& a);
};

namespace cuda {
/// `h`: scratch like x, for several rows. False if no kernel supports the operands.
bool norm_swiglu(Stream&, const Tensor& y, const View& x, const View& gamma, const Matrix<View>& gate,
                 const Matrix<View>& up, const Tensor& h, const NormSwiglu::Args& a);
}  // namespace cuda

/// Variables may be absent where views may.
template <Symbolic V>
V norm_swiglu(const V& x, const V& gamma, const Matrix<V>& gate, const Matrix<V>& up, NormSwiglu::Args a = {}) {
  return record<NormSwiglu>(a, x, gamma, gate.w, gate.scale, gate.offset, gate.bias, up.w, up.scale, up.offset,
                            up.bias);
}

}  // namespace hpcdl

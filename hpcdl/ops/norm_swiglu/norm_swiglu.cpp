#include "hpcdl/ops/norm_swiglu/norm_swiglu.h"

#include "hpcdl/ops/rms_norm/rms_norm.h"
#include "hpcdl/ops/swiglu/swiglu.h"

namespace hpcdl {

Spec NormSwiglu::infer(const Spec& x, const Spec& gamma, const Spec& gate, const Spec& gate_scale,
                       const Spec& gate_offset, const Spec& gate_bias, const Spec& up, const Spec& up_scale,
                       const Spec& up_offset, const Spec& up_bias, const Args& a) {
  const Spec h = RmsNorm::infer(x, gamma, {a.eps})[0],
             y = matrix_spec(name, h, {gate, gate_scale, gate_offset, gate_bias});
  require_spec(name, "up", matrix_spec(name, h, {up, up_scale, up_offset, up_bias}), y);
  require_spec(name, "up's scale", up_scale, gate_scale);
  return y;
}

Cost NormSwiglu::cost(const Spec& x, const Spec&, const Spec& gate, const Spec& gate_scale, const Spec& gate_offset,
                      const Spec& gate_bias, const Spec& up, const Spec& up_scale, const Spec& up_offset,
                      const Spec& up_bias, const Args&) {
  Cost c = matrix_cost(x, {gate, gate_scale, gate_offset, gate_bias});
  c += matrix_cost(x, {up, up_scale, up_offset, up_bias});
  return c;
}

std::array<Spec, 4> NormSwiglu::scratch(const Spec& x, const Spec& gamma, const Spec& gate, const Spec& gate_scale,
                                        const Spec& gate_offset, const Spec& gate_bias, const Spec& up,
                                        const Spec& up_scale, const Spec& up_offset, const Spec& up_bias,
                                        const Args& a) {
  const Spec y = infer(x, gamma, gate, gate_scale, gate_offset, gate_bias, up, up_scale, up_offset, up_bias, a);
  const auto rows = gate_scale && x[-1] > 0 ? x.size() / x[-1] : 0, groups = gate_scale ? gate_scale[1] : 0;
  return {x, y, Spec{{rows, x[-1]}, DType::i8}, Spec{{2, rows, groups}, DType::f32}};
}

void NormSwiglu::forward(Stream& s, Tensor y, View x, View gamma, View gate, View gate_scale, View gate_offset,
                         View gate_bias, View up, View up_scale, View up_offset, View up_bias, Tensor h, Tensor up_y,
                         Tensor values, Tensor groups, const Args& a) {
  const Matrix<View> first{gate, gate_scale, gate_offset, gate_bias}, second{up, up_scale, up_offset, up_bias};
#if HPCDL_CUDA
  if (s.device().is_cuda() && cuda::norm_swiglu(s, y, x, gamma, first, second, h, a)) return;
#endif
  const Spec half{{groups[1], groups[2]}, DType::f32}, sums{half.shape, DType::i32};
  const int4::Scratch scratch{values, Tensor(groups.data(), half, groups.device()),
                              Tensor(groups.ptr<float>() + half.size(), sums, groups.device())};
  RmsNorm::forward(s, h, {}, x, gamma, {a.eps});
  multiply(s, y, h, first, scratch, a.constant_weights);
  multiply(s, up_y, h, second, scratch, a.constant_weights);
  Swiglu::forward(s, y, y, up_y, {});
}

}  // namespace hpcdl

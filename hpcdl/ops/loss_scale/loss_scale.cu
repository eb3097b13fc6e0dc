#include "hpcdl/cuda/launch.h"
#include "hpcdl/ops/loss_scale/loss_scale.h"

namespace hpcdl::cuda {
namespace {

__global__ void begin(StepParams* p, const float* scale, const LossScale::Counts* counts) {
  LossScale::begin(*p, *scale, *counts);
}
__global__ void end(const StepParams* p, float* scale, LossScale::Counts* counts, LossScale::Args a) {
  LossScale::end(*p, *scale, *counts, a);
}

}  // namespace

void loss_scale_begin(Stream& s, Tensor scale, Tensor counts) {
  begin<<<1, 1, 0, queue(s)>>>(s.kernel_params(), scale.ptr<float>(), counts.ptr<LossScale::Counts>());
  launched("loss_scale");
}

void loss_scale_end(Stream& s, Tensor scale, Tensor counts, const LossScale::Args& args) {
  end<<<1, 1, 0, queue(s)>>>(s.kernel_params(), scale.ptr<float>(), counts.ptr<LossScale::Counts>(), args);
  launched("loss_scale");
}

}  // namespace hpcdl::cuda

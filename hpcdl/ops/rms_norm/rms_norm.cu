#include "hpcdl/ops/rms_norm/rms_norm.h"

#include "hpcdl/ops/layer_norm/norm_backward.cuh"
#include "hpcdl/ops/layer_norm/norm_forward.cuh"

namespace hpcdl::cuda {

void rms_norm(Stream& s, const NormForward& o) { run_norm<false>(s, o, "rms_norm"); }
void rms_norm_backward(Stream& s, const NormBackward& o) { run_norm<false>(s, o, "rms_norm_backward"); }

}  // namespace hpcdl::cuda

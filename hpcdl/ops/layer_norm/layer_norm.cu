#include "hpcdl/ops/layer_norm/layer_norm.h"

#include "hpcdl/ops/layer_norm/norm_backward.cuh"
#include "hpcdl/ops/layer_norm/norm_forward.cuh"

namespace hpcdl::cuda {

void layer_norm(Stream& s, const NormForward& o) { run_norm<true>(s, o, "layer_norm"); }
void layer_norm_backward(Stream& s, const NormBackward& o) { run_norm<true>(s, o, "layer_norm_backward"); }

}  // namespace hpcdl::cuda

#include "hpcdl/ops/swiglu/swiglu.h"

#include "hpcdl/ops/fuse/bodies.h"
#include "hpcdl/ops/fuse/device.cuh"

namespace hpcdl::cuda {

void swiglu(Stream& s, Tensor y, View gate, View up) {
  fuse::run(s, y, fuse::chain(fuse::load(gate), fuse::silu(), fuse::mul(up)), "swiglu");
}

void swiglu_backward(Stream& s, Grad dgate, Grad dup, View gate, View up, View dy) {
  visit_dtype(dy.dtype(), [&]<class T>() {
    fuse::for_each<T>(s, fuse::plane_of(dy, dgate, dup, gate, up),
                      fuse::GatedBackward<fuse::Silu>{dgate, dup, gate, up, dy}, "swiglu_backward");
  });
}

}  // namespace hpcdl::cuda

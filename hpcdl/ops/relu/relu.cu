#include "hpcdl/ops/relu/relu.h"

#include "hpcdl/ops/fuse/bodies.h"
#include "hpcdl/ops/fuse/device.cuh"

namespace hpcdl::cuda {

void relu(Stream& s, Tensor y, View x) { fuse::run(s, y, fuse::chain(fuse::load(x), fuse::relu()), "relu"); }

void relu_backward(Stream& s, Grad dx, View y, View dy) {
  visit_dtype(y.dtype(), [&]<class T>() {
    fuse::for_each<T>(s, fuse::plane_of(dx, y, dy), fuse::MapBackward<fuse::Relu>{dx, y, dy}, "relu_backward");
  });
}

}  // namespace hpcdl::cuda

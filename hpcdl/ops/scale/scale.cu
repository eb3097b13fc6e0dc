#include "hpcdl/ops/fuse/device.cuh"
#include "hpcdl/ops/scale/bodies.h"

namespace hpcdl::cuda {

void scale(Stream& s, Tensor y, View x, const Scale::Args& a) {
  const Grad to(y, Write::overwrite);
  visit_dtype(x.dtype(),
              [&]<class T>() { fuse::for_each<T>(s, fuse::plane_of(to, x), fuse::Scaled{to, x, a}, "scale"); });
}

void scale_backward(Stream& s, Grad dx, View y, View dy, const Scale::Args& a) {
  visit_dtype(dy.dtype(), [&]<class T>() {
    fuse::for_each<T>(s, fuse::plane_of(dx, y, dy), fuse::ScaledBackward{dx, y, dy, a}, "scale_backward");
  });
}

}  // namespace hpcdl::cuda

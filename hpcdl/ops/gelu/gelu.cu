#include "hpcdl/ops/gelu/gelu.h"

#include "hpcdl/ops/fuse/bodies.h"
#include "hpcdl/ops/fuse/device.cuh"

namespace hpcdl::cuda {

void gelu(Stream& s, Tensor y, View x, const Gelu::Args& a) {
  if (a.form == Gelu::Form::tanh) fuse::run(s, y, fuse::chain(fuse::load(x), fuse::gelu()), "gelu");
  else fuse::run(s, y, fuse::chain(fuse::load(x), fuse::gelu_erf()), "gelu");
}

void gelu_backward(Stream& s, Grad dx, View x, View dy, const Gelu::Args& a) {
  const auto run = [&]<class T, class F>() {
    fuse::for_each<T>(s, fuse::plane_of(dx, x, dy), fuse::MapBackward<F>{dx, x, dy}, "gelu_backward");
  };
  visit_dtype(x.dtype(), [&]<class T>() {
    if (a.form == Gelu::Form::tanh) run.template operator()<T, fuse::GeluTanh>();
    else run.template operator()<T, fuse::GeluErf>();
  });
}

}  // namespace hpcdl::cuda

#include "hpcdl/ops/swiglu/swiglu.h"

#include "hpcdl/ops/fuse/bodies.h"
#include "hpcdl/ops/fuse/device.cuh"

namespace hpcdl::cuda {

void swiglu(Stream& s, Tensor y, View gate, View up, Swiglu::Gate by) {
  if (by == Swiglu::Gate::silu) fuse::run(s, y, fuse::chain(fuse::load(gate), fuse::silu(), fuse::mul(up)), "swiglu");
  else fuse::run(s, y, fuse::chain(fuse::load(gate), fuse::gelu(), fuse::mul(up)), "swiglu");
}

void swiglu_backward(Stream& s, Grad dgate, Grad dup, View gate, View up, View dy, Swiglu::Gate by) {
  const auto run = [&]<class T, class F>() {
    fuse::for_each<T>(s, fuse::plane_of(dy, dgate, dup, gate, up), fuse::GatedBackward<F>{dgate, dup, gate, up, dy},
                      "swiglu_backward");
  };
  visit_dtype(dy.dtype(), [&]<class T>() {
    if (by == Swiglu::Gate::silu) run.template operator()<T, fuse::Silu>();
    else run.template operator()<T, fuse::GeluTanh>();
  });
}

}  // namespace hpcdl::cuda

#include "hpcdl/ops/gelu/gelu.h"

#include "hpcdl/ops/fuse/bodies.h"
#include "hpcdl/ops/fuse/fuse.h"

namespace hpcdl::cpu {

template <class Isa> void gelu(Isa isa, Pool& pool, Tensor y, View x, const Gelu::Args& a) {
  if (a.form == Gelu::Form::tanh) fuse::run(isa, pool, y, fuse::chain(fuse::load(x), fuse::gelu()));
  else fuse::run(isa, pool, y, fuse::chain(fuse::load(x), fuse::gelu_erf()));
}

template <class Isa> void gelu_backward(Isa isa, Pool& pool, Grad dx, View x, View dy, const Gelu::Args& a) {
  const auto run = [&]<class T, class F>() {
    fuse::for_each<T>(isa, pool, fuse::plane_of(dx, x, dy), dx.bytes(), fuse::MapBackward<F>{dx, x, dy});
  };
  visit_dtype(x.dtype(), [&]<class T>() {
    if (a.form == Gelu::Form::tanh) run.template operator()<T, fuse::GeluTanh>();
    else run.template operator()<T, fuse::GeluErf>();
  });
}

template void gelu(simd::Isa, Pool&, Tensor, View, const Gelu::Args&);
template void gelu_backward(simd::Isa, Pool&, Grad, View, View, const Gelu::Args&);

}  // namespace hpcdl::cpu

#include "hpcdl/ops/swiglu/swiglu.h"

#include "hpcdl/ops/fuse/bodies.h"
#include "hpcdl/ops/fuse/fuse.h"

namespace hpcdl::cpu {

template <class Isa> void swiglu(Isa isa, Pool& pool, Tensor y, View gate, View up, Swiglu::Gate by) {
  if (by == Swiglu::Gate::silu) fuse::run(isa, pool, y, fuse::chain(fuse::load(gate), fuse::silu(), fuse::mul(up)));
  else fuse::run(isa, pool, y, fuse::chain(fuse::load(gate), fuse::gelu(), fuse::mul(up)));
}

template <class Isa>
void swiglu_backward(Isa isa, Pool& pool, Grad dgate, Grad dup, View gate, View up, View dy, Swiglu::Gate by) {
  const auto run = [&]<class T, class F>() {
    fuse::for_each<T>(isa, pool, fuse::plane_of(dy, dgate, dup, gate, up), dgate.bytes() + dup.bytes(),
                      fuse::GatedBackward<F>{dgate, dup, gate, up, dy});
  };
  visit_dtype(dy.dtype(), [&]<class T>() {
    if (by == Swiglu::Gate::silu) run.template operator()<T, fuse::Silu>();
    else run.template operator()<T, fuse::GeluTanh>();
  });
}

template void swiglu(simd::Isa, Pool&, Tensor, View, View, Swiglu::Gate);
template void swiglu_backward(simd::Isa, Pool&, Grad, Grad, View, View, View, Swiglu::Gate);

}  // namespace hpcdl::cpu

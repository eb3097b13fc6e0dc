#include "hpcdl/ops/swiglu/swiglu.h"

#include "hpcdl/ops/fuse/bodies.h"
#include "hpcdl/ops/fuse/fuse.h"

namespace hpcdl::cpu {

template <class Isa> void swiglu(Isa isa, Pool& pool, Tensor y, View gate, View up) {
  fuse::run(isa, pool, y, fuse::chain(fuse::load(gate), fuse::silu(), fuse::mul(up)));
}

template <class Isa> void swiglu_backward(Isa isa, Pool& pool, Grad dgate, Grad dup, View gate, View up, View dy) {
  visit_dtype(dy.dtype(), [&]<class T>() {
    fuse::for_each<T>(isa, pool, fuse::plane_of(dy, dgate, dup, gate, up), dgate.bytes() + dup.bytes(),
                      fuse::GatedBackward<fuse::Silu>{dgate, dup, gate, up, dy});
  });
}

template void swiglu(simd::Isa, Pool&, Tensor, View, View);
template void swiglu_backward(simd::Isa, Pool&, Grad, Grad, View, View, View);

}  // namespace hpcdl::cpu

#include "hpcdl/ops/relu/relu.h"

#include "hpcdl/ops/fuse/bodies.h"
#include "hpcdl/ops/fuse/fuse.h"

namespace hpcdl::cpu {

template <class Isa> void relu(Isa isa, Pool& pool, Tensor y, View x) {
  fuse::run(isa, pool, y, fuse::chain(fuse::load(x), fuse::relu()));
}

template <class Isa> void relu_backward(Isa isa, Pool& pool, Grad dx, View y, View dy) {
  visit_dtype(y.dtype(), [&]<class T>() {
    fuse::for_each<T>(isa, pool, fuse::plane_of(dx, y, dy), dx.bytes(), fuse::MapBackward<fuse::Relu>{dx, y, dy});
  });
}

template void relu(simd::Isa, Pool&, Tensor, View);
template void relu_backward(simd::Isa, Pool&, Grad, View, View);

}  // namespace hpcdl::cpu

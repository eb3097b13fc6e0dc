#include "hpcdl/ops/fuse/for_each.h"
#include "hpcdl/ops/scale/bodies.h"
#include "hpcdl/simd/math.h"

namespace hpcdl::cpu {

template <class Isa> void scale(Isa isa, Pool& pool, Tensor y, View x, const Scale::Args& a) {
  const Grad to(y, Write::overwrite);
  visit_dtype(x.dtype(), [&]<class T>() {
    fuse::for_each<T>(isa, pool, fuse::plane_of(to, x), y.bytes(), fuse::Scaled{to, x, a});
  });
}

template <class Isa> void scale_backward(Isa isa, Pool& pool, Grad dx, View y, View dy, const Scale::Args& a) {
  visit_dtype(dy.dtype(), [&]<class T>() {
    fuse::for_each<T>(isa, pool, fuse::plane_of(dx, y, dy), dx.bytes(), fuse::ScaledBackward{dx, y, dy, a});
  });
}

template void scale(simd::Isa, Pool&, Tensor, View, const Scale::Args&);
template void scale_backward(simd::Isa, Pool&, Grad, View, View, const Scale::Args&);

}  // namespace hpcdl::cpu

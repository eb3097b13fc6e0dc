#include "hpcdl/ops/add/add.h"

#include "hpcdl/ops/fuse/bodies.h"
#include "hpcdl/ops/fuse/fuse.h"

namespace hpcdl::cpu {

template <class Isa> void add(Isa isa, Pool& pool, Tensor y, View a, View b) {
  fuse::run(isa, pool, y, fuse::chain(fuse::load(a), fuse::add(b)));
}

template <class Isa> void add_backward(Isa isa, Pool& pool, Grad da, Grad db, View dy) {
  visit_dtype(dy.dtype(), [&]<class T>() {
    fuse::for_each<T>(isa, pool, fuse::plane_of(dy, da, db), da.bytes() + db.bytes(), fuse::Fork{da, db, dy});
  });
}

template void add(simd::Isa, Pool&, Tensor, View, View);
template void add_backward(simd::Isa, Pool&, Grad, Grad, View);

}  // namespace hpcdl::cpu

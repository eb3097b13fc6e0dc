#include "hpcdl/ops/add/add.h"

#include "hpcdl/ops/fuse/bodies.h"
#include "hpcdl/ops/fuse/device.cuh"

namespace hpcdl::cuda {

void add(Stream& s, Tensor y, View a, View b) { fuse::run(s, y, fuse::chain(fuse::load(a), fuse::add(b)), "add"); }

void add_backward(Stream& s, Grad da, Grad db, View dy) {
  visit_dtype(dy.dtype(), [&]<class T>() {
    fuse::for_each<T>(s, fuse::plane_of(dy, da, db), fuse::Fork{da, db, dy}, "add_backward");
  });
}

}  // namespace hpcdl::cuda

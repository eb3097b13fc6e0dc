#include "hpcdl/ops/fill/fill.h"

#include "hpcdl/ops/fuse/device.cuh"

namespace hpcdl::cuda {
namespace {

struct Constant {
  fuse::Out y;
  float value;
  template <class At> __device__ void operator()(const At& at) const { at.store(y, typename At::V(value)); }
};

}  // namespace

void fill(Stream& s, Tensor y, float value) {
  visit_dtype(y.dtype(), [&]<class T>() { fuse::for_each<T>(s, fuse::plane_of(y), Constant{y, value}, "fill"); });
}

void add_into(Stream& s, Tensor y, View x) {
  fuse::run(s, Grad(y, Write::accumulate), fuse::chain(fuse::load(x)), "add_into");
}

}  // namespace hpcdl::cuda

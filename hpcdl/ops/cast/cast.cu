#include "hpcdl/ops/cast/cast.h"

#include "hpcdl/ops/fuse/device.cuh"

namespace hpcdl::cuda {
namespace {

template <class From> struct Copy {
  fuse::Out y;
  fuse::In x;
  template <class At> __device__ void operator()(const At& at) const { at.store(y, at.template load<From>(x)); }
};

}  // namespace

void cast(Stream& s, Grad y, View x) {
  visit_dtype(x.dtype(), [&]<class From>() {
    visit_dtype(y.dtype(), [&]<class To>() { fuse::for_each<To>(s, fuse::plane_of(y, x), Copy<From>{y, x}, "cast"); });
  });
}

}  // namespace hpcdl::cuda

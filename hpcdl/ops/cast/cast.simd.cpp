#include "hpcdl/ops/cast/cast.h"

#include "hpcdl/ops/fuse/for_each.h"

namespace hpcdl::cpu {
namespace {

template <class From> struct Copy {
  fuse::Out y;
  fuse::In x;
  template <class At> void operator()(const At& at) const { at.store(y, at.template load<From>(x)); }
};

}  // namespace

template <class Isa> void cast(Isa isa, Pool& pool, Grad y, View x) {
  visit_dtype(x.dtype(), [&]<class From>() {
    visit_dtype(y.dtype(),
                [&]<class To>() { fuse::for_each<To>(isa, pool, fuse::plane_of(y, x), y.bytes(), Copy<From>{y, x}); });
  });
}

template void cast(simd::Isa, Pool&, Grad, View);

}  // namespace hpcdl::cpu

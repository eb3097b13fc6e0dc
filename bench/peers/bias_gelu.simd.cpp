#include "bench/peers/bias_gelu.h"

#include "hpcdl/ops/fuse/bodies.h"
#include "hpcdl/ops/fuse/for_each.h"

namespace hpcdl::cpu {

template <class Isa> void bias_gelu(Isa isa, Pool& pool, Tensor y, View x, View bias) {
  visit_dtype(x.dtype(), [&]<class T>() {
    fuse::for_each<T>(isa, pool, fuse::Plane{x.rows(), x.cols()}, y.bytes(), fuse::BiasMap<fuse::GeluTanh>{y, x, bias});
  });
}

template void bias_gelu(simd::Isa, Pool&, Tensor, View, View);

}  // namespace hpcdl::cpu

#include "hpcdl/ops/layer_norm/layer_norm.h"

#include "hpcdl/ops/layer_norm/norm_rows.h"

namespace hpcdl::cpu {

template <class Isa> void layer_norm(Isa isa, Pool& pool, const NormForward& o) {
  norm_forward<Isa, true>(isa, pool, o);
}
template <class Isa> void layer_norm_backward(Isa isa, Pool& pool, const NormBackward& o) {
  norm_backward<Isa, true>(isa, pool, o);
}

template void layer_norm(simd::Isa, Pool&, const NormForward&);
template void layer_norm_backward(simd::Isa, Pool&, const NormBackward&);

}  // namespace hpcdl::cpu

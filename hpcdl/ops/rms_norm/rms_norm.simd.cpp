#include "hpcdl/ops/rms_norm/rms_norm.h"

#include "hpcdl/ops/layer_norm/norm_rows.h"

namespace hpcdl::cpu {

template <class Isa> void rms_norm(Isa isa, Pool& pool, const NormForward& o) {
  norm_forward<Isa, false>(isa, pool, o);
}
template <class Isa> void rms_norm_backward(Isa isa, Pool& pool, const NormBackward& o) {
  norm_backward<Isa, false>(isa, pool, o);
}

template void rms_norm(simd::Isa, Pool&, const NormForward&);
template void rms_norm_backward(simd::Isa, Pool&, const NormBackward&);

}  // namespace hpcdl::cpu

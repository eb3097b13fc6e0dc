#include "hpcdl/ops/fuse/fuse.h"

#include "hpcdl/ops/fuse/probe.h"

namespace hpcdl::fuse {

template <class Isa> void probe(Isa isa, Pool& pool, Probe which, const Grad& y, View x, View w, View b) {
  switch (which) {
    case Probe::scale_bias_gelu_residual:
      return run(isa, pool, y, chain(load(x), scale(2), add_columns(b), gelu(), add(x)));
    case Probe::softmax: return run(isa, pool, y, row_softmax(x, 0.5f));
    case Probe::rms_norm: return run(isa, pool, y, row_rms_norm(x, w, 1e-5f));
    case Probe::layer_norm: return run(isa, pool, y, row_layer_norm(x, w, b, 1e-5f));
  }
}

template void probe(simd::Isa, Pool&, Probe, const Grad&, View, View, View);

}  // namespace hpcdl::fuse

#include "hpcdl/ops/ring_attention/ring_attention.h"

namespace hpcdl {

Spec RingAttention::infer(const Spec& out, const Spec& lse, const Spec& q, const Spec& k, const Spec& v,
                          const Args& a) {
  require(a.axis.ranks >= 1 && a.rank >= 0 && a.rank < a.axis.ranks, name, "expected a rank of {}, got {}",
          a.axis.ranks, a.rank);
  require(q.shape.rank() == 3 && q[0] % 2 == 0, name, "needs two chunks of each sequence, (2 B, n, H*D), got {}",
          to_string(q));
  require(k.shape.rank() == 3 && k[1] == q[1], name, "needs keys of the same tokens as the queries, got {} and {}",
          to_string(k), to_string(q));
  const auto [whole, statistics] = Attention::infer(q, k, v, a.of({.causal = true, .window = a.window}));
  require_spec(name, "out", out, whole);
  require_spec(name, "lse", lse, statistics);
  return out;
}

}  // namespace hpcdl

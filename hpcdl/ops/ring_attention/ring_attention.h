#pragma once
// Causal attention over sequences whose tokens the ranks of an axis share, without all keys in one place: keys and values
// go around the ring of the ranks (ring_plan.h), the next ones while a rank attends to those that it has. What it gets
// from each is merged by the log-sum-exp in f32 (ops/attention_merge). In the backward pass they go around again, and
// their gradients follow one step behind and then return to the rank that has the keys. A GPU takes no window.
//
// q: (2 B, n, H*D), the first chunk of the rank of all B sequences and then the second of all; k, v: (2 B, n, Hkv*D); f32,
// bf16 or f16, tokens may be strided. Returns the rows of q. Besides its own, a rank holds two times 4 B n Hkv D elements
// of keys and values, however many ranks there are. For each layer it sends so many elements once in the forward pass and
// twice in the backward pass, in each of ring_plan's last_step() steps: with e bytes an element, p ranks, and N tokens in
// all rows, 6 N Hkv D e (p-1)/p bytes without a window.
//
// With Graph::checkpoint(), the output and its statistics are kept, so that nothing goes around the ring again.

#include "hpcdl/ops/ring_attention/ring_plan.h"
#include "hpcdl/ops/ring_attention/ring_records.h"

namespace hpcdl {

/// The gradient rule: `out` and `lse` are what records have made of q, k and v.
struct RingAttention {
  static constexpr std::string_view name = "ring_attention";
  using Args = RingArgs;
  static Spec infer(const Spec& out, const Spec& lse, const Spec& q, const Spec& k, const Spec& v, const Args& a);
  template <class G> static void record_backward(G& g, std::span<const Operand> o, const Args& a) {
    RingRecords(g, a, o[3].spec, o[4].spec, Phase::backward).backward(o);
  }
  using Backward = Operands<dIn<2>, dIn<3>, dIn<4>, In<2>, In<3>, In<4>, In<0>, In<1>, dOut<0>>;
};

template <Symbolic V> V ring_attention(const V& q, const V& k, const V& v, const RingArgs& a) {
  auto& g = q.graph();
  const V out = g.temporary("ring.out", q.spec());
  const V lse = g.temporary("ring.lse", {{q[0], a.heads, q[1]}, DType::f32});
  RingAttention::infer(out.spec(), lse.spec(), q.spec(), k.spec(), v.spec(), a);
  RingRecords(g, a, q.spec(), k.spec(), Phase::forward)
      .forward(write_operand(out), write_operand(lse), read_operand(q), read_operand(k), read_operand(v));
  return record<RingAttention>(a, out, lse, q, k, v);
}

}  // namespace hpcdl

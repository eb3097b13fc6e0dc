#pragma once
// out = softmax(scale * q k^T) v per head, tiled with an online softmax; the T x S matrix is never stored.
//
// q: (B, T, H*D) or (B, T, H, D); k, v: (B, S, Hkv*D) or (B, S, Hkv, D); f32, bf16 or f16. Tokens may be strided:
// slices of a packed qkv and of its gradient are allowed. Query head h reads key/value head h * Hkv / H
// (grouped-query). out: like q, contiguous. lse (B, H, T) f32 = log(sum(exp(scale * q k^T))), for backward only.
// causal: query t sees keys 0 .. t + S - T, or with a window w only the last w of them. With a cap c a score x becomes
// c tanh(x / c) before the softmax. Sums are f32 for every storage type. Largest D: 256.
//
// The keys may be a part of those that the queries see: results of several parts are merged by their lse (attention_merge),
// and gradients are sums over the parts, given the merged out and lse. On a GPU, queries are at most as far as the keys
// (ahead = 0), and rows whose lse is far (cross_entropy/far_lse.h) lose digits, which a whole call recovers.
//
// Sources: Milakov & Gimelshein, "Online normalizer calculation for softmax", 2018; Rabe & Staats,
// "Self-attention does not need O(n^2) memory", 2021; Dao, "FlashAttention-2", 2023; Ainslie et al., "GQA", 2023.

#include "hpcdl/op.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

struct Attention {
  static constexpr std::string_view name = "attention";
  static constexpr std::uint32_t kVersion = 2;
  static constexpr OpClass kClass = OpClass::product;
  static constexpr unsigned kCasts = 0b111;
  static constexpr int kAux = 1;
  static constexpr std::int64_t kMaxHeadDim = 256, kMaxSplits = 64;
  struct Args {
    int heads = 1;
    int kv_heads = 0;  // 0: equal to heads
    bool causal = true;
    float scale = 0;          // 0: 1/sqrt(D)
    float cap = 0;            // of the scaled scores; 0: none
    std::int64_t window = 0;  // keys that a query sees, its own included; 0: all. Needs a causal mask
    std::int64_t ahead = -1;  // of a part of the keys: how many positions the last query is after the last of them
    bool part() const { return ahead >= 0; }
    bool valid() const;
    /// The first of the keys 0 .. `last` that the query at position `last` sees.
    std::int64_t first_key(std::int64_t last) const { return window > 0 && last >= window ? last + 1 - window : 0; }
  };
  static std::array<Spec, 2> infer(const Spec& q, const Spec& k, const Spec& v, const Args& a);
  /// Counts only the work that the masks leave. Backward recomputes the scores.
  static Cost cost(const Spec& q, const Spec& k, const Spec& v, const Args& a);
  static Cost backward_cost(const Spec& q, const Spec& k, const Spec& v, const Args& a);
  /// The number of shares of the keys that a GPU processes separately when T = 1, so that all of its multiprocessors
  /// read them.
  static std::int64_t splits(const Spec& q, const Spec& k, const Args& a);
  /// The partial results of each share of the keys.
  static std::array<Spec, 1> scratch(const Spec& q, const Spec& k, const Spec& v, const Args& a);
  static void forward(Stream& s, Tensor out, Tensor lse, View q, View k, View v, Tensor scratch, const Args& a);
  /// For operands that are not f32: f32 sums of dk and dv on a CPU, of dq with the statistics of its rows on a GPU.
  static std::array<Spec, 1> backward_scratch(const Spec& q, const Spec& k, const Spec& v, const Args& a);
  /// Recomputes probabilities from lse: p = exp(scale q k^T - lse), ds = p (do v^T - sum(do out)).
  static void backward(Stream& s, Grad dq, Grad dk, Grad dv, View q, View k, View v, View out, View lse, View dout,
                       Tensor scratch, const Args& a);
  using Backward = Operands<dIn<0>, dIn<1>, dIn<2>, In<0>, In<1>, In<2>, Out<0>, Out<1>, dOut<0>, Scratch<0>>;
};

namespace cpu {
template <class Isa>
void attention(Isa, Pool&, Tensor out, Tensor lse, View q, View k, View v, const Attention::Args& a,
               const Numerics& numerics);
/// The same for T = 1: bound by the bandwidth of k and v. It sums in another order.
template <class Isa>
void attention_decode(Isa, Pool&, Tensor out, Tensor lse, View q, View k, View v, const Attention::Args& a);
template <class Isa>
void attention_backward(Isa, Pool&, Grad dq, Grad dk, Grad dv, View q, View k, View v, View out, View lse, View dout,
                        Tensor scratch, const Attention::Args& a);
}  // namespace cpu
namespace cuda {
void attention(Stream&, Tensor out, Tensor lse, View q, View k, View v, Tensor scratch, const Attention::Args& a);
void attention_backward(Stream&, Grad dq, Grad dk, Grad dv, View q, View k, View v, View out, View lse, View dout,
                        Tensor scratch, const Attention::Args& a);
}  // namespace cuda

inline void require_for_gpu(const Attention::Args& a) {
  require(a.ahead <= 0, Attention::name,
          "queries that are {} positions after their keys run on a CPU only: let each call have all keys of its window",
          a.ahead);
}

inline void Attention::forward(Stream& s, Tensor out, Tensor lse, View q, View k, View v, Tensor scratch,
                               const Args& a) {
  on(
      s,
      [&](auto isa, Pool& pool) {
        if (q[1] == 1 && a.ahead <= 0 && !s.numerics().row_invariant)
          cpu::attention_decode(isa, pool, out, lse, q, k, v, a);
        else cpu::attention(isa, pool, out, lse, q, k, v, a, s.numerics());
      },
      [&](auto& queue) {
        require_for_gpu(a);
        cuda::attention(queue, out, lse, q, k, v, scratch, a);
      });
}
inline void Attention::backward(Stream& s, Grad dq, Grad dk, Grad dv, View q, View k, View v, View out, View lse,
                                View dout, Tensor scratch, const Args& a) {
  on(
      s,
      [&](auto isa, Pool& pool) {
        cpu::attention_backward(isa, pool, dq, dk, dv, q, k, v, out, lse, dout, scratch, a);
      },
      [&](auto& queue) {
        require_for_gpu(a);
        cuda::attention_backward(queue, dq, dk, dv, q, k, v, out, lse, dout, scratch, a);
      });
}

template <Symbolic V> V attention(const V& q, const V& k, const V& v, Attention::Args a) {
  return record<Attention>(a, q, k, v);
}

}  // namespace hpcdl

#pragma once
// out = softmax(scale * q k^T) v per head, without a mask, for several sequences whose tokens are packed: every query
// sees all keys of its own sequence.
//
// q: (1, T, H*D); k, v: (1, T, Hkv*D); f32, bf16 or f16; tokens may be strided. Sequence r has the rows starts[r] ..
// starts[r + 1] of all of them; starts: i32 (R+1), from 0 to T, not decreasing. Query head h reads head h * Hkv / H. out:
// like q, contiguous. Sums are f32 for every storage type. Largest D: 256. A CPU refuses starts that do not fit; on a GPU
// they must. Inference only.
//
// Sources: ops/attention; packed sequences as in Zeng et al., "Boosting distributed training performance of the unpadded
// BERT model", 2022.

#include "hpcdl/op.h"
#include "hpcdl/ops/attention/attention.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

struct PackedAttention {
  static constexpr std::string_view name = "packed_attention";
  static constexpr OpClass kClass = OpClass::product;
  static constexpr unsigned kCasts = 0b111;
  struct Args {
    int heads = 1;
    int kv_heads = 0;       // 0: equal to heads
    std::int64_t most = 0;  // tokens that a sequence has at most; 0: T
    float scale = 0;        // 0: 1/sqrt(D)
    std::int64_t longest(const Spec& q) const { return most > 0 && most < q[1] ? most : q[1]; }
  };
  static Spec infer(const Spec& q, const Spec& k, const Spec& v, const Spec& starts, const Args& a);
  /// As if all sequences were as long as the longest may be, since their lengths are not known here.
  static Cost cost(const Spec& q, const Spec& k, const Spec& v, const Spec& starts, const Args& a);
  static void forward(Stream& s, Tensor out, View q, View k, View v, View starts, const Args& a);
};

/// Throws if starts do not fit the other operands.
void require_starts(const View& q, const View& starts, const PackedAttention::Args& a);

namespace cpu {
template <class Isa>
void packed_attention(Isa, Pool&, Tensor out, View q, View k, View v, View starts, const PackedAttention::Args& a,
                      const Numerics& numerics);
}  // namespace cpu
namespace cuda {
void packed_attention(Stream&, Tensor out, View q, View k, View v, View starts, const PackedAttention::Args& a);
}  // namespace cuda

inline void PackedAttention::forward(Stream& s, Tensor out, View q, View k, View v, View starts, const Args& a) {
  on(
      s,
      [&](auto isa, Pool& pool) {
        require_starts(q, starts, a);
        cpu::packed_attention(isa, pool, out, q, k, v, starts, a, s.numerics());
      },
      [&](auto& queue) { cuda::packed_attention(queue, out, q, k, v, starts, a); });
}

template <Symbolic V> V packed_attention(const V& q, const V& k, const V& v, const V& starts, PackedAttention::Args a) {
  return record<PackedAttention>(a, q, k, v, starts);
}

}  // namespace hpcdl

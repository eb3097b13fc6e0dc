#pragma once
// out = softmax(scale * q k^T) v per head, for the packed queries of several sequences whose keys and values lie in pages
// of a pool.
//
// q: (1, T, H*D), f32, bf16 or f16; tokens may be strided. The queries of sequence r are rows starts[r] .. starts[r + 1]
// of q, of R sequences; starts: i32 (R+1), from 0 to T. Sequence r has lengths[r] keys, those of its queries included and
// last: a query sees the keys up to its own, or with a window w the last w of them. lengths: i32 (R). pages: i32 (R, W); key t of sequence r is row t % 64 of page
// pages[r, t / 64] of the pools, which are (pages, Hkv, 64, D), f32, bf16 or f16, or 8-bit codes with scales
// (kv_write/pages.h). Query head h reads head h * Hkv / H. out: like q, contiguous. Sums are f32 for every storage type;
// tensor cores round weights to the type of q, and weights times scales of values to bf16. Largest D: 256. A CPU refuses
// starts, lengths and pages that do not fit; on a GPU they must.
//
// Source: Kwon et al., "Efficient memory management for large language model serving with PagedAttention", 2023.

#include "hpcdl/op.h"
#include "hpcdl/ops/kv_write/pages.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

struct PagedAttention {
  static constexpr std::string_view name = "paged_attention";
  static constexpr OpClass kClass = OpClass::product;
  static constexpr unsigned kCasts = 0;
  struct Args {
    int heads = 1;
    int most_queries = 0;  // of a sequence; 0: T
    float scale = 0;       // 0: 1/sqrt(D)
    float cap = 0;         // of the scaled scores, as that of attention(); 0: none
    int window = 0;        // keys that a query sees, its own included; 0: all
    std::int64_t most(const Spec& q) const { return most_queries > 0 ? most_queries : q[1]; }
  };
  static Spec infer(const Spec& q, const Spec& k_pool, const Spec& v_pool, const Spec& starts, const Spec& lengths,
                    const Spec& pages, const Args& a);
  /// Counts all pages of the sequences, since their lengths are not known here.
  static Cost cost(const Spec& q, const Spec& k_pool, const Spec& v_pool, const Spec& starts, const Spec& lengths,
                   const Spec& pages, const Args& a);
  /// The partial results of each share of the keys, for a GPU that divides them where sequences have one query.
  static std::array<Spec, 1> scratch(const Spec& q, const Spec& k_pool, const Spec& v_pool, const Spec& starts,
                                     const Spec& lengths, const Spec& pages, const Args& a);
  static void forward(Stream& s, Tensor out, View q, View k_pool, View v_pool, View starts, View lengths, View pages,
                      Tensor scratch, const Args& a);
};

/// Throws if starts, lengths or pages do not fit the other operands.
void require_batch(const View& q, const View& k_pool, const View& starts, const View& lengths, const View& pages,
                   const PagedAttention::Args& a);

namespace cpu {
template <class Isa>
void paged_attention(Isa, Pool&, Tensor out, View q, View k_pool, View v_pool, View starts, View lengths, View pages,
                     const PagedAttention::Args& a, const Numerics& numerics);
}  // namespace cpu
namespace cuda {
void paged_attention(Stream&, Tensor out, View q, View k_pool, View v_pool, View starts, View lengths, View pages,
                     Tensor scratch, const PagedAttention::Args& a);
}  // namespace cuda

inline void PagedAttention::forward(Stream& s, Tensor out, View q, View k_pool, View v_pool, View starts, View lengths,
                                    View pages, Tensor scratch, const Args& a) {
  on(
      s,
      [&](auto isa, Pool& pool) {
        require_batch(q, k_pool, starts, lengths, pages, a);
        cpu::paged_attention(isa, pool, out, q, k_pool, v_pool, starts, lengths, pages, a, s.numerics());
      },
      [&](auto& queue) { cuda::paged_attention(queue, out, q, k_pool, v_pool, starts, lengths, pages, scratch, a); });
}

template <Symbolic V>
V paged_attention(const V& q, const V& k_pool, const V& v_pool, const V& starts, const V& lengths, const V& pages,
                  PagedAttention::Args a) {
  return record<PagedAttention>(a, q, k_pool, v_pool, starts, lengths, pages);
}

}  // namespace hpcdl

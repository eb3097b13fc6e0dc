#include "hpcdl/ops/attention/attention.h"

#include "hpcdl/ops/attention/query_blocks.h"

namespace hpcdl::cpu {

template <class Isa>
void attention(Isa isa, Pool& pool, Tensor out, Tensor lse, View q, View k, View v, const Attention::Args& a,
               const Numerics& numerics) {
  const std::int64_t heads = a.heads, kv_heads = a.kv_heads > 0 ? a.kv_heads : heads, queries = q[1], keys = k[1];
  const std::int64_t d = q.rank() == 4 ? q[3] : q[2] / heads;
  const Extent e{queries,
                 keys,
                 d,
                 keys - queries + (a.ahead > 0 ? a.ahead : 0),
                 a.causal,
                 a.scale > 0 ? a.scale : 1 / __builtin_sqrtf(static_cast<float>(d)),
                 numerics.row_invariant,
                 a.window,
                 a.cap};
  visit_dtype(q.dtype(), [&]<class T>() {
    attn::with_words<Isa, T>(isa, [&]<class W>(W) {
      for_query_blocks<W>(pool, q[0], heads, queries, d,
                          [&](Work<W>& work, std::int64_t b, std::int64_t h, std::int64_t t0, std::int64_t t1) {
                            const auto g = h * kv_heads / heads;
                            query_blocks(isa, work, attn::head_rows<T>(out, b, h, d),
                                         lse ? lse.ptr<float>() + b * lse.strides()[0] + h * lse.strides()[1] : nullptr,
                                         attn::head_rows<T>(q, b, h, d), attn::head_rows<T>(k, b, g, d),
                                         attn::head_rows<T>(v, b, g, d), t0, t1, e);
                          });
    });
  });
}

template void attention(simd::Isa, Pool&, Tensor, Tensor, View, View, View, const Attention::Args&, const Numerics&);

}  // namespace hpcdl::cpu

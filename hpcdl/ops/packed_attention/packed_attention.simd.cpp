#include "hpcdl/ops/packed_attention/packed_attention.h"

#include "hpcdl/ops/attention/query_blocks.h"

namespace hpcdl::cpu {

template <class Isa>
void packed_attention(Isa isa, Pool& pool, Tensor out, View q, View k, View v, View starts,
                      const PackedAttention::Args& a, const Numerics& numerics) {
  const std::int64_t heads = a.heads, kv_heads = a.kv_heads > 0 ? a.kv_heads : heads, d = q[2] / heads,
                     sequences = starts[0] - 1;
  const auto* const start = starts.ptr<std::int32_t>();
  const float scale = a.scale > 0 ? a.scale : 1 / __builtin_sqrtf(static_cast<float>(d));
  std::int64_t longest = 0;
  for (std::int64_t r = 0; r < sequences; ++r)
    longest = longest < start[r + 1] - start[r] ? start[r + 1] - start[r] : longest;
  if (longest == 0) return;
  visit_dtype(q.dtype(), [&]<class T>() {
    attn::with_words<Isa, T>(isa, [&]<class W>(W) {
      for_query_blocks<W>(pool, sequences, heads, longest, d,
                          [&](Work<W>& work, std::int64_t r, std::int64_t h, std::int64_t t0, std::int64_t t1) {
                            const std::int64_t row = start[r], tokens = start[r + 1] - row, g = h * kv_heads / heads;
                            if (t0 >= tokens) return;  // other sequences have more
                            const Extent e{tokens, tokens, d, 0, false, scale, numerics.row_invariant};
                            query_blocks(isa, work, attn::head_rows<T>(out, 0, h, d).from(row), nullptr,
                                         attn::head_rows<T>(q, 0, h, d).from(row),
                                         attn::head_rows<T>(k, 0, g, d).from(row),
                                         attn::head_rows<T>(v, 0, g, d).from(row), t0, t1 < tokens ? t1 : tokens, e);
                          });
    });
  });
}

template void packed_attention(simd::Isa, Pool&, Tensor, View, View, View, View, const PackedAttention::Args&,
                               const Numerics&);

}  // namespace hpcdl::cpu

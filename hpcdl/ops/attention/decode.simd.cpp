#include "hpcdl/ops/attention/one_query.h"
#include "hpcdl/pool.h"

namespace hpcdl::cpu {

template <class Isa>
void attention_decode(Isa isa, Pool& pool, Tensor out, Tensor lse, View q, View k, View v, const Attention::Args& a) {
  const std::int64_t heads = a.heads, kv_heads = a.kv_heads > 0 ? a.kv_heads : heads, keys = k[1];
  const std::int64_t d = q.rank() == 4 ? q[3] : q[2] / heads;
  const Sizes z{heads,
                kv_heads,
                d,
                keys,
                a.scale > 0 ? a.scale : 1 / __builtin_sqrtf(static_cast<float>(d)),
                a.first_key(keys - 1),
                a.cap};
  visit_dtype(q.dtype(), [&]<class T>() {
    // A static split: the same thread processes the same part of the keys in every step.
    parallel_for(pool, q[0] * kv_heads, 1 + 16384 / ((keys - z.first) * d), [&](std::int64_t begin, std::int64_t end) {
      while (begin < end) {
        const auto b = begin / kv_heads, last = (b + 1) * kv_heads < end ? (b + 1) * kv_heads : end;
        run_task<Isa, attn::Rows<const T>>(
            isa, begin - b * kv_heads, last - b * kv_heads, z, lse ? lse.ptr<float>() + b * lse.strides()[0] : nullptr,
            lse ? lse.strides()[1] : 0, [&](std::int64_t h) { return attn::head_rows<T>(q, b, h, d)[0]; },
            [&](std::int64_t h) { return attn::head_rows<T>(out, b, h, d)[0]; },
            [&](std::int64_t g) { return attn::head_rows<T>(k, b, g, d); },
            [&](std::int64_t g) { return attn::head_rows<T>(v, b, g, d); });
        begin = last;
      }
    });
  });
}

template void attention_decode(simd::Isa, Pool&, Tensor, Tensor, View, View, View, const Attention::Args&);

}  // namespace hpcdl::cpu

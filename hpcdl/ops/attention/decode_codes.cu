#include "hpcdl/ops/attention/decode.cuh"

// One query per sequence, of a pool of codes. Tensor cores take queries of 16 bits whose heads are whole pieces of up to
// 128 elements; others have a pass for each head.

namespace hpcdl::cuda::decoding {
namespace {

template <class T, class K> void start_width(Stream& s, const Decode& p, int batch) {
  const bool tall = p.heads / p.kv_heads > 8;
  if (p.width <= 64) tall ? start_mma<T, K, 64, true>(s, p, batch) : start_mma<T, K, 64, false>(s, p, batch);
  else tall ? start_mma<T, K, 128, true>(s, p, batch) : start_mma<T, K, 128, false>(s, p, batch);
}

template <class K> void start_plain(Stream& s, const Decode& p, int batch) {
  const bool whole = p.width % kLanes<K> == 0 && p.k.whole_pieces() && p.v.whole_pieces();
  if (!whole) start<K, 16, 1, 1, false>(s, p, batch);
  else if (p.width <= 8 * kLanes<K>) start<K, 8, 1, 1, true>(s, p, batch);
  else if (p.heads / p.kv_heads % 4 == 0) start<K, 16, 1, 4, true>(s, p, batch);
  else start<K, 16, 1, 1, true>(s, p, batch);
}

}  // namespace

bool start_codes(Stream& s, const Decode& p, int batch) {
  const bool bits16 = p.q.dtype == DType::bf16 || p.q.dtype == DType::f16;
  const bool by_mma =
      bits16 && p.width <= 128 && p.width % 16 == 0 && p.q.whole_pieces() && p.k.whole_pieces() && p.v.whole_pieces();
  visit_pool_dtype(p.k.dtype, [&]<class K>() {
    if constexpr (kHasScales<K>) {
      if (!by_mma) start_plain<K>(s, p, batch);
      else if (p.q.dtype == DType::bf16) start_width<bf16, K>(s, p, batch);
      else start_width<f16, K>(s, p, batch);
    }
  });
  return !by_mma;
}

}  // namespace hpcdl::cuda::decoding

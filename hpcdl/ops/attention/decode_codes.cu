#include "hpcdl/ops/attention/decode.cuh"

// One query per sequence, of a pool of codes. Tensor cores take queries of 16 bits whose heads are whole pieces;
// others have a pass for each head.

namespace hpcdl::cuda::decoding {
namespace {

template <class K> void start_plain(Stream& s, const Decode& p, int batch) {
  const bool whole = p.width % kLanes<K> == 0 && p.k.whole_pieces() && p.v.whole_pieces();
  if (!whole) start<K, 16, 1, 1, false>(s, p, batch);
  else if (p.width <= 8 * kLanes<K>) start<K, 8, 1, 1, true>(s, p, batch);
  else if (p.heads / p.kv_heads % 4 == 0) start<K, 16, 1, 4, true>(s, p, batch);
  else start<K, 16, 1, 1, true>(s, p, batch);
}

}  // namespace

bool start_codes(Stream& s, const Decode& p, int batch) {
  bool by_mma = false;
  visit_pool_dtype(p.k.dtype, [&]<class K>() {
    if constexpr (kHasScales<K>) {
      if (p.q.dtype == DType::bf16) by_mma = start_mma<bf16, K>(s, p, batch);
      else if (p.q.dtype == DType::f16) by_mma = start_mma<f16, K>(s, p, batch);
      if (!by_mma) start_plain<K>(s, p, batch);
    }
  });
  return !by_mma;
}

}  // namespace hpcdl::cuda::decoding

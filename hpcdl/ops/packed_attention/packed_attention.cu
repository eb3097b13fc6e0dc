#include "hpcdl/ops/attention/device_attention.h"

// The tiles of attention over rows of one sequence each: attention/mma_forward.cu, plain.cu.

namespace hpcdl::cuda {

void packed_attention(Stream& s, Tensor out, View q, View k, View v, View starts, const PackedAttention::Args& a) {
  if (q.size() == 0) return;
  const PackedAttend c{out, q, k, v, starts, a};
  require(c.sequences() < 65536, PackedAttention::name, "a GPU takes up to 65535 sequences, got {}", c.sequences());
  if (mma_fits(s, c)) return attend_mma(s, c);
  attend_plain(s, c);
}

}  // namespace hpcdl::cuda

#include "hpcdl/ops/attention/device_attention.h"
#include "hpcdl/ops/attention/paged_wgmma.h"
#include "hpcdl/ops/attention/rows_alone.h"

// The kernels of attention, with a page table before their keys and values: one query of each sequence divides its keys
// among blocks (attention/decode.cu), more go through tiles (attention/paged_wgmma.cu, mma_forward.cu, plain.cu).

namespace hpcdl::cuda {

void paged_attention(Stream& s, Tensor out, View q, View k_pool, View v_pool, View starts, View lengths, View pages,
                     Tensor scratch, const PagedAttention::Args& a) {
  if (q.size() == 0) return;
  const PagedAttend c{out, q, k_pool, v_pool, starts, lengths, pages, scratch, a};
  require(lengths[0] < 65536, PagedAttention::name, "a GPU takes up to 65535 sequences, got {}", lengths[0]);
  if (s.numerics().row_invariant) {
    require(q[1] < 65536, PagedAttention::name, "a GPU computes up to 65535 queries row by row, got {}", q[1]);
    return attend_rows_alone(s, c);
  }
  if (c.most_queries() == 1) return attend_decode(s, c);
  if (c.args.cap == 0 && wgmma_fits(s, c)) return attend_wgmma(s, c);
  if (mma_fits(s, c)) return attend_mma(s, c);
  attend_plain(s, c);
}

}  // namespace hpcdl::cuda

#include "hpcdl/ops/attention/wgmma_host.cuh"

namespace hpcdl::cuda {

void attend_documents_wgmma(Stream& s, const Attend& c, int shape) {
  with_type(c.q.dtype(), [&]<class T>() {
    if (c.width() > 64) start_forward<T, ForwardShape<128, 2, 128, 2, true, 1, false, false, true>>(s, c);
    else if (shape == 0) start_forward<T, ForwardShape<64, 2, 128, 2, true, 1, false, false, true>>(s, c);
    else start_forward<T, ForwardShape<64, 3, 128, 2, true, 1, false, false, true>>(s, c);
  });
}

void attend_backward_documents_wgmma(Stream& s, const AttendBackward& c) {
  with_type(c.q.dtype(), [&]<class T>() { start_backward_of<T, true>(s, c); });
}

}  // namespace hpcdl::cuda

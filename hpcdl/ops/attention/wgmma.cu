#include "hpcdl/ops/attention/wgmma_host.cuh"

// Which calls the Hopper kernels support, and their shapes without documents.

namespace hpcdl::cuda {
namespace {

bool operands_fit(const Stream& s, const Attend& c) {
  const auto width = c.width();
  return c.plain_scores() && has_sm90a(s) && width % 8 == 0 && width <= 128 &&
         (c.q.dtype() == DType::bf16 || c.q.dtype() == DType::f16) && c.k.dtype() == c.q.dtype() &&
         c.q[0] * c.args.heads <= 1 << 20 && c.q[1] <= 1 << 24 && c.k[1] <= 1 << 24 &&
         (!c.documents || c.q[0] * c.q[1] <= 1 << 30) && heads_of(c.q, width).whole_pieces() &&
         heads_of(c.k, width).whole_pieces() && heads_of(c.v, width).whole_pieces() &&
         heads_of(c.out, width).whole_pieces();
}

}  // namespace

bool wgmma_fits(const Stream& s, const Attend& c) { return operands_fit(s, c); }

bool wgmma_fits(const Stream& s, const AttendBackward& c) {
  const auto fits = [&](const View& x) {
    return !x || (x.dtype() == c.q.dtype() && heads_of(x, c.width()).whole_pieces());
  };
  // Below f16's range the rounded gradients of scores have a larger error than `hpcdl verify` allows at a width of 24;
  // other ways stay within it.
  const bool narrow_f16 = c.q.dtype() == DType::f16 && c.width() % 64 != 0;
  return operands_fit(s, c) && !narrow_f16 && fits(c.dout) && fits(c.dq) && fits(c.dk) && fits(c.dv);
}

void attend_wgmma(Stream& s, const Attend& c, int shape) {
  if (c.documents) return attend_documents_wgmma(s, c, shape);
  with_type(c.q.dtype(), [&]<class T>() {
    const bool narrow = c.width() <= 64;
    if (narrow && shape == 0) start_forward<T, ForwardShape<64, 2, 128, 2, true>>(s, c);
    else if (narrow) start_forward<T, ForwardShape<64, 3, 128, 2, true>>(s, c);
    else if (shape == 0) start_forward<T, ForwardShape<128, 2, 128, 2, true>>(s, c);
    else start_forward<T, ForwardShape<128, 3, 64, 2, true>>(s, c);
  });
}

void attend_backward_wgmma(Stream& s, const AttendBackward& c) {
  if (c.documents) return attend_backward_documents_wgmma(s, c);
  with_type(c.q.dtype(), [&]<class T>() { start_backward_of<T, false>(s, c); });
}

}  // namespace hpcdl::cuda

#pragma once
// cuDNN behind cuda::attention: opened at run time where it is installed, so that nothing links to it.

#include "hpcdl/ops/attention/device_attention.h"

namespace hpcdl::cuda {

/// How cuDNN's backward adds up dq over the keys.
enum class DqSums : unsigned char {
  in_order,  // from all of ds, which it keeps, 2 bytes for each pair of a query and a key: as many heads at a time as
             // there is room for
  atomic,    // in f32 in memory, in another order each time
};

/// True when the library is there and has a way to compute c that, but for atomic sums of dq, repeats its bits. What it
/// said is remembered per shape.
bool cudnn_fits(Stream& s, const Attend& c);
bool cudnn_fits(Stream& s, const AttendBackward& c, DqSums sums);
/// Whether the heads that sums in order have room for at a time are work for three quarters of the GPU.
bool cudnn_fills_a_gpu(const Stream& s, const AttendBackward& c);
/// c, which fits.
void attend_cudnn(Stream& s, const Attend& c);
void attend_backward_cudnn(Stream& s, const AttendBackward& c, DqSums sums);

}  // namespace hpcdl::cuda

#pragma once
// cuDNN as a backend of cuda::attention: loaded at run time where it is installed, so that nothing links to it.

#include "hpcdl/ops/attention/device_attention.h"

namespace hpcdl::cuda {

/// How cuDNN's backward sums dq over the keys.
enum class DqSums : unsigned char {
  in_order,  // from all of ds, which it stores with 2 bytes per pair of query and key: as many heads at a time as fit
  atomic,    // in f32 in memory, in a different order each time
};

/// True if the library is present and can compute c reproducibly bit for bit, apart from atomic sums of dq. The answer
/// is cached per shape.
bool cudnn_fits(Stream& s, const Attend& c);
bool cudnn_fits(Stream& s, const AttendBackward& c, DqSums sums);
/// Whether the heads that fit at a time with ordered sums can occupy two fifths of the GPU.
bool cudnn_fills_a_gpu(const Stream& s, const AttendBackward& c);
/// Computes c, for which cudnn_fits() holds.
void attend_cudnn(Stream& s, const Attend& c);
void attend_backward_cudnn(Stream& s, const AttendBackward& c, DqSums sums);

}  // namespace hpcdl::cuda

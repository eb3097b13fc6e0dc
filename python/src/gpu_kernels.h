#pragma once
// Small kernels of the module: work between ops, which calls on a CPU do on the host.

#include "hpcdl/stream.h"

namespace hpcdl::cuda {

/// `to` (i32): -1 if `targets` (i32 or i64) is `ignore`, the target itself if it is 0 .. vocabulary-1, and otherwise
/// vocabulary, which makes the loss NaN.
void plain_targets(Stream& s, Tensor to, View targets, std::int64_t ignore, std::int64_t vocabulary);

/// *to = (dloss ? *dloss : value), divided by the number of targets >= 0 if `mean`; 0 if there are none.
void share_of_gradient(Stream& s, float* to, const float* dloss, float value, View targets, bool mean);

/// *x /= *by.
void divide(Stream& s, float* x, const float* by);

/// *to = params, as a kernel argument, so that a captured call keeps the values.
void put_params(Stream& s, StepParams* to, const StepParams& params);

}  // namespace hpcdl::cuda

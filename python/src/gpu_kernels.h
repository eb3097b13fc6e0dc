#pragma once
// The small kernels of the module itself: what calls on a CPU do on the host between ops.

#include "hpcdl/core/stream.h"

namespace hpcdl::cuda {

/// `to` (i32): -1 where `targets` (i32 or i64) is `ignore`, the target itself where it is 0 .. vocabulary-1, and
/// vocabulary, which makes the loss NaN, where it is anything else.
void plain_targets(Stream& s, Tensor to, View targets, std::int64_t ignore, std::int64_t vocabulary);

/// *to = (dloss ? *dloss : value), over the number of targets >= 0 if `mean`; 0 where there are none.
void share_of_gradient(Stream& s, float* to, const float* dloss, float value, View targets, bool mean);

/// *x /= *by.
void divide(Stream& s, float* x, const float* by);

/// *to = params, as a kernel's argument: a captured call keeps the values.
void put_params(Stream& s, StepParams* to, const StepParams& params);

}  // namespace hpcdl::cuda

#pragma once
// GPU: converts bytes of pixels to the numbers that a model reads.

#include "hpcdl/stream.h"
#include "hpcdl/tensor.h"

namespace hpcdl::data {

/// to (B, ..., 3) f32 = table[pixel, channel]; images of ids (B) i64 below 0 become 0. pixels: the shape of `to`, u8;
/// table (256,
/// 3) f32. All on the GPU of the stream.
void normalise(const Stream& s, const Tensor& to, const View& pixels, const View& ids, const View& table);

}  // namespace hpcdl::data

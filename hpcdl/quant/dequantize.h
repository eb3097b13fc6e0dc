#pragma once

#include "hpcdl/buffer.h"
#include "hpcdl/nn/codec.h"
#include "hpcdl/pool.h"

namespace hpcdl::quant {

/// The values (n, in) of a quantised matrix in f32, on a CPU. The parts must outlive the call.
OwnedTensor dequantize(Pool& pool, const nn::Codec& codec, const nn::Codec::Parts<View>& parts, std::int64_t n);

}  // namespace hpcdl::quant

#pragma once
// Quantises weights to NF4 and FP4, with the bytes of bitsandbytes. The layout: ops/quant_linear/quant_format.h.

#include <array>
#include <span>
#include <string_view>

#include "hpcdl/buffer.h"
#include "hpcdl/nn/codec.h"
#include "hpcdl/ops/quant_linear/quant_format.h"
#include "hpcdl/pool.h"

namespace hpcdl::quant {

using QuantTensors = QuantParts<OwnedTensor>;

/// w (N, K), or (K, N) when `transposed`, f32, bf16 or f16, dense rows; K a multiple of 64. Each block of 64 inputs is
/// divided by its largest magnitude, which is its scale, and each weight becomes the nearest value of the format's table (the
/// lower one of two): in f32, as bitsandbytes does on a CPU. With
/// `importance`, K numbers, the scale of a block is the multiple of that magnitude by 0.7 to 1.05 for which the sum of squared errors that are
/// multiplied by them is smallest. The scales of nf4_double and fp4_double less their mean are
/// quantised in blocks of 256 with the table of dynamic_map(). Throws Error that names `name` and the position when a weight is NaN or infinite.
QuantTensors quantize_four_bits(Pool& pool, const View& w, QuantFormat format, bool transposed = false,
                                nn::RoundingError* error = nullptr, std::string_view name = "weight",
                                std::span<const float> importance = {});

/// The 256 values, in order, by which scales are quantised: signed, with 7 bits that are shared by an exponent of ten and
/// a fraction (Dettmers et al., "8-bit optimizers via block-wise quantization", 2022, section 2.2).
const std::array<float, 256>& dynamic_map();

}  // namespace hpcdl::quant

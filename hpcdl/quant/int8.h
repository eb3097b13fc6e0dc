#pragma once
// Quantises rows of weights to 8 bits, as LLM.int8 of bitsandbytes. The layout: ops/quant_linear/quant_format.h.

#include <string_view>

#include "hpcdl/quant/four_bits.h"

namespace hpcdl::quant {

/// w as of quantize_four_bits(), K a multiple of 32. The scale of a row is its largest magnitude, and a weight becomes the nearest
/// multiple of scale / 127. Throws as quantize_four_bits().
QuantTensors quantize_int8(Pool& pool, const View& w, bool transposed = false, nn::RoundingError* error = nullptr,
                           std::string_view name = "weight");

}  // namespace hpcdl::quant

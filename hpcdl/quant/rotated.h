#pragma once
// Quantises rotated weights to 3 bits, and to -1, 0 and 1. The layout: ops/quant_linear/quant_format.h.

#include <string_view>

#include "hpcdl/quant/four_bits.h"

namespace hpcdl::quant {

/// w as of quantize_four_bits(), K a multiple of 256, in rot3 or rot_ternary. Each block of 256 inputs is rotated
/// (ops/quant_linear/rotation.h); its scale and its codes are found in turn, each by least squares for the other, from
/// several beginnings. Throws as quantize_four_bits().
QuantTensors quantize_rotated(Pool& pool, const View& w, QuantFormat format, bool transposed = false,
                              nn::RoundingError* error = nullptr, std::string_view name = "weight");

}  // namespace hpcdl::quant

#pragma once
// Quantises weights to floats of few bits: E4M3, and MXFP4. The layouts: ops/quant_linear/quant_format.h.

#include <string_view>

#include "hpcdl/quant/four_bits.h"

namespace hpcdl::quant {

/// w as of quantize_four_bits(), K a multiple of 32. fp8: the scale of a row puts its largest magnitude at 448. mxfp4: the
/// scale of 32 inputs is the power of two that OCP's specification gives or, with `search`, twice that if the squared error is smaller.
/// Each weight becomes the nearest value, ties to even codes. Throws as quantize_four_bits().
QuantTensors quantize_fp8(Pool& pool, const View& w, bool transposed = false, nn::RoundingError* error = nullptr,
                          std::string_view name = "weight");
QuantTensors quantize_mxfp4(Pool& pool, const View& w, bool search, bool transposed = false,
                            nn::RoundingError* error = nullptr, std::string_view name = "weight");

}  // namespace hpcdl::quant

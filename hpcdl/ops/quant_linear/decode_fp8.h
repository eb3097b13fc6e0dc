#pragma once

#include "hpcdl/ops/quant_linear/codes.h"
#include "hpcdl/ops/quant_linear/quant_format.h"

namespace hpcdl::cpu {

/// E4M3 and a scale for each row, or for each block of 128 rows and inputs. The codes of NaN, which quantisation never writes,
/// read as 480.
template <class Isa, bool kBlocks> struct DecodeFp8 {
  using V = simd::Vec<Isa>;
  static constexpr std::int64_t kBlock = 32, kBytes = 32;
  const std::uint8_t* row;
  const float* scales;

  DecodeFp8(const QuantMatrix& w, std::int64_t r)
      : row(w.parts.codes.ptr<std::uint8_t>() + r * w.parts.codes[1]),
        scales(w.parts.scale.ptr<float>() + (kBlocks ? r / 128 * w.parts.scale[1] : r)) {}

  template <class F> [[gnu::always_inline]] void block(std::int64_t b, F&& f) const {
    const std::uint8_t* p = row + b * kBytes;
    const V s(scales[kBlocks ? b * kBlock / 128 : 0]), rebias(0x1p120f);
    const auto at = [&](int i) {
      const auto c = Codes<Isa>::load_u8(p + i);
      return ((c & 0x80) << 24 | (c & 0x7f) << 20).bits_of_float() * rebias * s;
    };
#pragma GCC unroll 2
    for (int i = 0; i < kBlock; i += 2 * V::N) f(i, at(i), i + V::N, at(i + V::N));
  }
};

}  // namespace hpcdl::cpu

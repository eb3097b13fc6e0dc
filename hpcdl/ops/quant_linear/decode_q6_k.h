#pragma once

#include "hpcdl/ops/quant_linear/codes.h"
#include "hpcdl/ops/quant_linear/quant_format.h"

namespace hpcdl::cpu {

/// 128 bytes with the four low bits of codes, 64 with the two high ones, 16 signed scales, their scale in F16. Of each 128
/// inputs, quarter j (of 32) has its low bits in half j / 2 of bytes 32 (j % 2) to 32 (j % 2) + 31 of 64, and its high
/// ones in bits 2 j of 32.
template <class Isa> struct DecodeQ6K {
  using V = simd::Vec<Isa>;
  static constexpr std::int64_t kBlock = 256, kBytes = 210;
  const std::uint8_t* row;

  DecodeQ6K(const QuantMatrix& w, std::int64_t r) : row(w.parts.codes.ptr<std::uint8_t>() + r * w.parts.codes[1]) {}

  template <class F> [[gnu::always_inline]] void block(std::int64_t b, F&& f) const {
    const std::uint8_t* p = row + b * kBytes;
    const auto* scales = reinterpret_cast<const std::int8_t*>(p + 192);
    const float d = half_at(p + 208, Isa());
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 32; i += V::N) {
        const auto low0 = Codes<Isa>::load_u8(p + half * 64 + i), low1 = Codes<Isa>::load_u8(p + half * 64 + 32 + i);
        const auto high = Codes<Isa>::load_u8(p + 128 + half * 32 + i);
        const auto scale = [&](int j) { return V(d * static_cast<float>(scales[half * 8 + 2 * j + i / 16])); };
        const auto value = [&](auto low, auto two, int j) { return ((low | (two << 4)) - 32).to_float() * scale(j); };
        const int k = half * 128 + i;
        f(k, value(low0 & 15, high & 3, 0), k + 32, value(low1 & 15, (high >> 2) & 3, 1));
        f(k + 64, value(low0 >> 4, (high >> 4) & 3, 2), k + 96, value(low1 >> 4, high >> 6, 3));
      }
    }
  }
};

}  // namespace hpcdl::cpu

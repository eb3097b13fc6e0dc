#pragma once

#include "hpcdl/ops/quant_linear/codes.h"
#include "hpcdl/ops/quant_linear/quant_format.h"
#include "hpcdl/ops/quant_linear/rotated_values.h"

namespace hpcdl::cpu {

/// Codes of 3 bits in planes of two bits and of one, and a scale for each block. Values are those of the rotated weights.
template <class Isa> struct DecodeRot3 {
  using V = simd::Vec<Isa>;
  static constexpr bool kIsRotated = true;
  static constexpr std::int64_t kBlock = 256, kBytes = 96;
  const std::uint8_t* row;
  const float* scales;
  Table16<Isa> values;

  DecodeRot3(const QuantMatrix& w, std::int64_t r)
      : row(w.parts.codes.ptr<std::uint8_t>() + r * w.parts.codes[1]),
        scales(w.parts.scale.ptr<float>() + r * w.parts.scale[1]),
        values(kRot3Values) {}

  template <class F> [[gnu::always_inline]] void block(std::int64_t b, F&& f) const {
    const std::uint8_t* p = row + b * kBytes;
    const V s(scales[b]);
    const auto at = [&](int i) {
      const auto low = Codes<Isa>::load_u8(p + i % 64) >> (i / 64 * 2);
      const auto high = Codes<Isa>::load_u8(p + 64 + i % 32) >> (i / 32);
      return values.look_up((low & 3) | ((high & 1) << 2)) * s;
    };
    for (int i = 0; i < kBlock; i += 2 * V::N) f(i, at(i), i + V::N, at(i + V::N));
  }
};

/// Five codes of -1, 0 or 1 in a byte, and a scale for each block. Values are those of the rotated weights.
template <class Isa> struct DecodeRotTernary {
  using V = simd::Vec<Isa>;
  static constexpr bool kIsRotated = true;
  static constexpr std::int64_t kBlock = 256, kBytes = kTernaryBytes;
  const std::uint8_t* row;
  const float* scales;

  DecodeRotTernary(const QuantMatrix& w, std::int64_t r)
      : row(w.parts.codes.ptr<std::uint8_t>() + r * w.parts.codes[1]),
        scales(w.parts.scale.ptr<float>() + r * w.parts.scale[1]) {}

  template <class F> [[gnu::always_inline]] void block(std::int64_t b, F&& f) const {
    const std::uint8_t* p = row + b * kBytes;
    std::uint8_t codes[kBlock], left[kBytes];
    for (int j = 0; j < kBytes; ++j) left[j] = p[j];
    for_ternary([&](int i, int j, int) {
      const auto third = static_cast<std::uint8_t>(left[j] * 171 >> 9);  // of numbers below 256
      codes[i] = static_cast<std::uint8_t>(left[j] - 3 * third);
      left[j] = third;
    });
    const V s(scales[b]);
    const auto at = [&](int i) { return (Codes<Isa>::load_u8(codes + i) - 1).to_float() * s; };
    for (int i = 0; i < kBlock; i += 2 * V::N) f(i, at(i), i + V::N, at(i + V::N));
  }
};

}  // namespace hpcdl::cpu

#pragma once

#include "hpcdl/ops/quant_linear/codes.h"
#include "hpcdl/ops/quant_linear/quant_format.h"

namespace hpcdl::cpu {

/// Scales of scales and of minima in F16, 12 bytes with 8 scales and 8 minima of 6 bits, 128 bytes: of each 64 inputs, the
/// first 32 are in the low bits of 32 bytes.
template <class Isa> struct DecodeQ4K {
  using V = simd::Vec<Isa>;
  static constexpr std::int64_t kBlock = 256, kBytes = 144;
  const std::uint8_t* row;

  DecodeQ4K(const QuantMatrix& w, std::int64_t r) : row(w.parts.codes.ptr<std::uint8_t>() + r * w.parts.codes[1]) {}

  /// The 8 scales, and the 8 minima, one in each byte.
  struct SixBits {
    std::uint64_t scales, minima;
    explicit SixBits(const std::uint8_t* p) {
      std::uint32_t a, b, c;
      std::memcpy(&a, p, 4), std::memcpy(&b, p + 4, 4), std::memcpy(&c, p + 8, 4);
      const auto join = [](std::uint32_t low, std::uint32_t high) { return low | std::uint64_t{high} << 32; };
      scales = join(a & 0x3f3f3f3fu, (c & 0x0f0f0f0fu) | (a >> 6 & 0x03030303u) << 4);
      minima = join(b & 0x3f3f3f3fu, (c >> 4 & 0x0f0f0f0fu) | (b >> 6 & 0x03030303u) << 4);
    }
  };

  template <class F> [[gnu::always_inline]] void block(std::int64_t b, F&& f) const {
    const std::uint8_t* p = row + b * kBytes;
    const float d = half_at(p, Isa()), dmin = half_at(p + 2, Isa());
    const SixBits six(p + 4);
    const std::uint8_t* q = p + 16;
    for (int g = 0; g < 8; g += 2, q += 32) {
      const auto of = [g](std::uint64_t bytes, int i) { return static_cast<float>(bytes >> 8 * (g + i) & 255u); };
      const V s0(d * of(six.scales, 0)), s1(d * of(six.scales, 1));
      const V m0(dmin * of(six.minima, 0)), m1(dmin * of(six.minima, 1));
#pragma GCC unroll 2
      for (int i = 0; i < 32; i += V::N) {
        const auto c = Codes<Isa>::load_u8(q + i);
        f(g * 32 + i, rounded((c & 15).to_float() * s0) - m0, g * 32 + 32 + i, rounded((c >> 4).to_float() * s1) - m1);
      }
    }
  }
};

}  // namespace hpcdl::cpu

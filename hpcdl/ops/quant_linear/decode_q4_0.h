#pragma once

#include "hpcdl/ops/quant_linear/codes.h"
#include "hpcdl/ops/quant_linear/quant_format.h"

namespace hpcdl::cpu {

/// A scale in F16, 16 bytes: input i in the low four bits of byte i, input i + 16 in the high ones.
template <class Isa> struct DecodeQ4_0 {
  using V = simd::Vec<Isa>;
  static constexpr std::int64_t kBlock = 32, kBytes = 18;
  const std::uint8_t* row;

  DecodeQ4_0(const QuantMatrix& w, std::int64_t r) : row(w.parts.codes.ptr<std::uint8_t>() + r * w.parts.codes[1]) {}

  template <class F> [[gnu::always_inline]] void block(std::int64_t b, F&& f) const {
    const std::uint8_t* p = row + b * kBytes;
    const V s(half_at(p, Isa()));
#pragma GCC unroll 2
    for (int i = 0; i < 16; i += V::N) {
      const auto q = Codes<Isa>::load_u8(p + 2 + i);
      f(i, ((q & 15) - 8).to_float() * s, i + 16, ((q >> 4) - 8).to_float() * s);
    }
  }
};

}  // namespace hpcdl::cpu

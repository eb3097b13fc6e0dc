#pragma once

#include "hpcdl/core/mx.h"
#include "hpcdl/ops/quant_linear/codes.h"
#include "hpcdl/ops/quant_linear/quant_format.h"

namespace hpcdl::cpu {

/// E2M1, the first of two in the low bits of a byte, and an E8M0 scale for each block.
template <class Isa> struct DecodeMxfp4 {
  using V = simd::Vec<Isa>;
  static constexpr std::int64_t kBlock = kMxBlock, kBytes = kMxBlock / 2;
  const std::uint8_t *row, *scales;
  Table16<Isa> values;

  DecodeMxfp4(const QuantMatrix& w, std::int64_t r)
      : row(w.parts.codes.ptr<std::uint8_t>() + r * w.parts.codes[1]),
        scales(w.parts.scale.ptr<std::uint8_t>() + r * w.parts.scale[1]),
        values(kE2m1Values) {}

  template <class F> [[gnu::always_inline]] void block(std::int64_t b, F&& f) const {
    const std::uint8_t* p = row + b * kBytes;
    const V s(from_e8m0(scales[b]));
    for (int i = 0; i < kBlock; i += 2 * V::N, p += V::N) {
      const V even = values.look_up(Codes<Isa>::template load_nibbles<false, true>(p));
      const V odd = values.look_up(Codes<Isa>::template load_nibbles<true, true>(p + V::N / 2));
      f(i, even * s, i + V::N, odd * s);
    }
  }
};

}  // namespace hpcdl::cpu

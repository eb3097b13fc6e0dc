#pragma once

#include "hpcdl/ops/quant_linear/codes.h"
#include "hpcdl/ops/quant_linear/four_bit_values.h"
#include "hpcdl/ops/quant_linear/quant_format.h"

namespace hpcdl::cpu {

/// Two codes in a byte, of NF4 or FP4; a scale for each block, or the code of one.
template <class Isa, bool nested> struct DecodeFourBits {
  using V = simd::Vec<Isa>;
  static constexpr std::int64_t kBlock = 64, kBytes = 32;
  const std::uint8_t* row;
  std::int64_t first;  // block of the matrix
  const QuantMatrix& w;
  Table16<Isa> values;

  DecodeFourBits(const QuantMatrix& m, std::int64_t r)
      : row(m.parts.codes.ptr<std::uint8_t>() + r * m.parts.codes[1]),
        first(r * m.parts.scale[1]),
        w(m),
        values(four_bit_values(m.format)) {}

  V scale(std::int64_t b) const {
    if constexpr (!nested) return V(w.parts.scale.template ptr<float>()[first + b]);
    const auto code = w.parts.scale.template ptr<std::uint8_t>()[first + b];
    const float *table = w.parts.table.template ptr<float>(), *outer = w.parts.outer.template ptr<float>();
    return rounded(V(table[code]) * V(outer[(first + b) / 256])) + V(table[256]);
  }
  template <class F> [[gnu::always_inline]] void block(std::int64_t b, F&& f) const {
    const std::uint8_t* p = row + b * kBytes;
    const V s = scale(b);
#pragma GCC unroll 4
    for (int i = 0; i < kBlock; i += 2 * V::N, p += V::N) {
      const V even = values.look_up(Codes<Isa>::template load_nibbles<false>(p));
      const V odd = values.look_up(Codes<Isa>::template load_nibbles<true>(p + V::N / 2));
      f(i, even * s, i + V::N, odd * s);
    }
  }
};

}  // namespace hpcdl::cpu

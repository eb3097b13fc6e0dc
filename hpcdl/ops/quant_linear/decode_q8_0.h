#pragma once

#include "hpcdl/ops/quant_linear/codes.h"
#include "hpcdl/ops/quant_linear/quant_format.h"

namespace hpcdl::cpu {

/// A scale in F16, 32 signed bytes.
template <class Isa> struct DecodeQ8_0 {
  using V = simd::Vec<Isa>;
  static constexpr std::int64_t kBlock = 32, kBytes = 34;
  const std::uint8_t* row;

  DecodeQ8_0(const QuantMatrix& w, std::int64_t r) : row(w.parts.codes.ptr<std::uint8_t>() + r * w.parts.codes[1]) {}

  template <class F> [[gnu::always_inline]] void block(std::int64_t b, F&& f) const {
    const std::uint8_t* p = row + b * kBytes;
    const auto* q = reinterpret_cast<const std::int8_t*>(p + 2);
    const V s(half_at(p, Isa()));
#pragma GCC unroll 2
    for (int i = 0; i < kBlock; i += 2 * V::N)
      f(i, Codes<Isa>::load_i8(q + i).to_float() * s, i + V::N, Codes<Isa>::load_i8(q + i + V::N).to_float() * s);
  }
};

}  // namespace hpcdl::cpu

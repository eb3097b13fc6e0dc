#pragma once

#include "hpcdl/ops/quant_linear/codes.h"
#include "hpcdl/ops/quant_linear/quant_format.h"

namespace hpcdl::cpu {

template <class Isa> struct DecodeInt8 {
  using V = simd::Vec<Isa>;
  static constexpr std::int64_t kBlock = 32, kBytes = 32;
  const std::int8_t* row;
  float scale;

  DecodeInt8(const QuantMatrix& w, std::int64_t r)
      : row(w.parts.codes.ptr<std::int8_t>() + r * w.parts.codes[1]), scale(w.parts.scale.ptr<float>()[r]) {}

  template <class F> [[gnu::always_inline]] void block(std::int64_t b, F&& f) const {
    const std::int8_t* p = row + b * kBytes;
    const V s(scale), one_of_127(1.0f / 127);
#pragma GCC unroll 2
    for (int i = 0; i < kBlock; i += 2 * V::N)
      f(i, Codes<Isa>::load_i8(p + i).to_float() * s * one_of_127, i + V::N,
        Codes<Isa>::load_i8(p + i + V::N).to_float() * s * one_of_127);
  }
};

}  // namespace hpcdl::cpu

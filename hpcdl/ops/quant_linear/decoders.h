#pragma once
// Every decoder. A decoder reads one row of a matrix:
//
//   kBlock, kBytes     inputs of a block, and bytes of its codes
//   row                where the codes of the row begin
//   block(b, f)        f(i, v, j, u) for all values of block b: V::N at input i of the block, and V::N at input j
//   kIsRotated         it exists if these are values of rotated weights (rotation.h)
//
// Values are computed as the programs that define the formats do: every product and sum is rounded to f32.

#include "hpcdl/ops/quant_linear/decode_four_bits.h"
#include "hpcdl/ops/quant_linear/decode_fp8.h"
#include "hpcdl/ops/quant_linear/decode_int8.h"
#include "hpcdl/ops/quant_linear/decode_mxfp4.h"
#include "hpcdl/ops/quant_linear/decode_q4_0.h"
#include "hpcdl/ops/quant_linear/decode_q4_k.h"
#include "hpcdl/ops/quant_linear/decode_q6_k.h"
#include "hpcdl/ops/quant_linear/decode_q8_0.h"
#include "hpcdl/ops/quant_linear/decode_rotated.h"
#include "hpcdl/ops/quant_linear/rotation.h"

namespace hpcdl::cpu {

template <class Decoder> constexpr bool is_rotated = requires { Decoder::kIsRotated; };

/// block() of the weights themselves.
template <class Isa, class Decoder, class F>
[[gnu::always_inline]] inline void values_of_block(const Decoder& row, std::int64_t b, F&& f) {
  if constexpr (!is_rotated<Decoder>) {
    row.block(b, f);
  } else {
    using V = simd::Vec<Isa>;
    alignas(64) float values[kRotated];
    row.block(b, [&](std::int64_t i, V v, std::int64_t j, V u) { v.store(values + i), u.store(values + j); });
    rotate_back(values);
    for (int i = 0; i < kRotated; i += 2 * V::N) f(i, V::load(values + i), i + V::N, V::load(values + i + V::N));
  }
}

/// Calls f.operator()<Decoder>().
template <class Isa, class F> void with_decoder(QuantFormat format, F&& f) {
  switch (format) {
    case QuantFormat::nf4:
    case QuantFormat::fp4: return f.template operator()<DecodeFourBits<Isa, false>>();
    case QuantFormat::nf4_double:
    case QuantFormat::fp4_double: return f.template operator()<DecodeFourBits<Isa, true>>();
    case QuantFormat::int8: return f.template operator()<DecodeInt8<Isa>>();
    case QuantFormat::q8_0: return f.template operator()<DecodeQ8_0<Isa>>();
    case QuantFormat::q4_0: return f.template operator()<DecodeQ4_0<Isa>>();
    case QuantFormat::q4_k: return f.template operator()<DecodeQ4K<Isa>>();
    case QuantFormat::q6_k: return f.template operator()<DecodeQ6K<Isa>>();
    case QuantFormat::rot3: return f.template operator()<DecodeRot3<Isa>>();
    case QuantFormat::rot_ternary: return f.template operator()<DecodeRotTernary<Isa>>();
    case QuantFormat::fp8: return f.template operator()<DecodeFp8<Isa, false>>();
    case QuantFormat::fp8_blocks: return f.template operator()<DecodeFp8<Isa, true>>();
    case QuantFormat::mxfp4: return f.template operator()<DecodeMxfp4<Isa>>();
  }
}

}  // namespace hpcdl::cpu

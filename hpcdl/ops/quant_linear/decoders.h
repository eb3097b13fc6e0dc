#pragma once
// Every decoder. A decoder reads one row of a matrix:
//
//   kBlock, kBytes     inputs of a block, and bytes of its codes
//   row                where the codes of the row begin
//   block(b, f)        f(i, v, j, u) for all values of block b: V::N at input i of the block, and V::N at input j
//
// Values are computed as the programs that define the formats do: every product and sum is rounded to f32.

#include "hpcdl/ops/quant_linear/decode_four_bits.h"
#include "hpcdl/ops/quant_linear/decode_int8.h"
#include "hpcdl/ops/quant_linear/decode_q4_0.h"
#include "hpcdl/ops/quant_linear/decode_q4_k.h"
#include "hpcdl/ops/quant_linear/decode_q6_k.h"
#include "hpcdl/ops/quant_linear/decode_q8_0.h"

namespace hpcdl::cpu {

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
  }
}

}  // namespace hpcdl::cpu

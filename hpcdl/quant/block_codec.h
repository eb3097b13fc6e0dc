#pragma once
// What codecs have in common whose matrices the ops quant_linear and quant_embedding read (ops/quant_linear/quant_format.h).

#include "hpcdl/graph.h"
#include "hpcdl/nn/codec.h"
#include "hpcdl/ops/quant_linear/quant_format.h"

namespace hpcdl::quant {

/// A product, and rows, of such a matrix: nn::Codec.
Var multiply_blocks(QuantFormat format, const nn::Codec::Parts<Var>& w, const Var& x, const Var& bias,
                    const Var& residual, Activation activation, DType out);
Var rows_of_blocks(QuantFormat format, const nn::Codec::Parts<Var>& w, const Var& ids, const Var& positions,
                   const Var& places, DType out);

/// The functions of a codec. `nested`: its format with quantised scales, whose matrices have four parts.
template <QuantFormat plain, QuantFormat nested = plain> struct BlockCodec {
  using Vars = nn::Codec::Parts<Var>;

  static QuantFormat format(const Vars& w) { return w[3] ? nested : plain; }
  static nn::Codec::Parts<Spec> specs(std::int64_t out, std::int64_t in, const nn::CodecOptions& o) {
    const auto p = quant_parts(o.nested ? nested : plain, out, in);
    return {p.codes, p.scale, p.outer, p.table};
  }
  static Var multiply(const Vars& w, const Var& x, const Var& bias, const Var& residual, Activation activation,
                      DType out) {
    return multiply_blocks(format(w), w, x, bias, residual, activation, out);
  }
  static Var rows(const Vars& w, const Var& ids, const Var& positions, const Var& places, DType out) {
    return rows_of_blocks(format(w), w, ids, positions, places, out);
  }
};

}  // namespace hpcdl::quant

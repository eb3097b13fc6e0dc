#include "hpcdl/quant/block_codec.h"

#include "hpcdl/nn/linear.h"
#include "hpcdl/ops/add/add.h"
#include "hpcdl/ops/quant_embedding/quant_embedding.h"
#include "hpcdl/ops/quant_linear/quant_linear.h"

namespace hpcdl::quant {
namespace {
QuantParts<Var> operands(const nn::Codec::Parts<Var>& w) { return {w[0], w[1], w[2], w[3]}; }
}  // namespace

Var multiply_blocks(QuantFormat format, const nn::Codec::Parts<Var>& w, const Var& x, const Var& bias,
                    const Var& residual, Activation activation, DType out) {
  const QuantLinear::Args args{.format = format, .out = out, .constant_weights = true};
  if (activation == Activation::none) return quant_linear(x, operands(w), bias, residual, args);
  const Var y = nn::activated(quant_linear(x, operands(w), bias, Var(), args), activation);
  return residual ? add(y, residual) : y;
}

Var rows_of_blocks(QuantFormat format, const nn::Codec::Parts<Var>& w, const Var& ids, const Var& positions,
                   const Var& places, DType out) {
  return quant_embedding(ids, operands(w), positions, places, {.format = format, .dtype = out});
}

}  // namespace hpcdl::quant

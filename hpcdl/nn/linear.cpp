#include "hpcdl/nn/linear.h"

#include "hpcdl/ops/int4_linear/int4_linear.h"
#include "hpcdl/ops/mlp/mlp.h"

namespace hpcdl::nn {
namespace {

/// INT4 matrices are (out, in) whatever the layout of the original.
Var int4(const Linear& l, const Var& x, Activation activation, const Var& residual) {
  Graph& g = x.graph();
  const auto w = l.weight.int4(g);
  const auto fused = activation == Activation::relu        ? Int4Activation::relu
                     : activation == Activation::gelu_tanh ? Int4Activation::gelu
                     : activation == Activation::gelu_erf  ? Int4Activation::gelu_erf
                                                           : Int4Activation::none;
  return int4_linear(x, w.packed, w.scale, w.offset, l.bias(g), residual,
                     {.activation = fused, .constant_weights = true});
}

}  // namespace

Var Linear::operator()(const Var& x, Activation activation, const Var& residual) const {
  if (split) return split->linear(*this, x, activation, residual);
  Graph& g = x.graph();
  const auto scope = module_scope(g, weight);
  if (weight.quantized()) return int4(*this, x, activation, residual);
  return linear(x, weight.rounded(g, x.dtype()), bias(g),
                {.activation = activation, .conv1d = layout == Layout::in_out, .constant_weights = weight.constant()},
                residual);
}

Var mlp(const Linear& first, const Linear& second, const Var& x, Activation activation, const Var& residual) {
  if (second.split) return second.split->mlp(first, second, x, activation, residual);
  Graph& g = x.graph();
  require(first.layout == second.layout, "nn", "both layers of an MLP must have one layout");
  return mlp(x, first.weight.rounded(g, x.dtype()), first.bias(g), second.weight.rounded(g, x.dtype()), second.bias(g),
             residual, {.activation = activation, .conv1d = first.layout == Layout::in_out});
}

}  // namespace hpcdl::nn

#include "hpcdl/nn/linear.h"

#include "hpcdl/ops/add/add.h"
#include "hpcdl/ops/exchange/exchange.h"
#include "hpcdl/ops/gelu/gelu.h"
#include "hpcdl/ops/mlp/mlp.h"
#include "hpcdl/ops/relu/relu.h"

namespace hpcdl::nn {
namespace {

/// For a layer whose inputs are distributed over ranks.
Var rows(const Linear& l, const Sharing& s, const Var& x, Activation activation, const Var& residual,
         const ForwardOptions& o) {
  require(!l.mx4, "shard", "{}: layers that ranks share are not emulated in MXFP4", l.weight.name);
  require(activation == Activation::none, "shard", "{}: a layer with an activation cannot be split along its inputs",
          l.weight.name);
  Graph& g = x.graph();
  const Axis axis = l.weight.axis();
  const auto product = [&](const Var& in, const Var& added, bool addend) {
    const auto affine = [&] {
      if (l.fp8)
        return (*l.fp8)(in, l.weight, l.bias(g), added, {.conv1d = l.layout == Layout::in_out, .addend = addend});
      if (l.weight.quantized())
        return l.weight.codec->multiply(l.weight.part_vars(g), in, addend ? Var() : l.bias(g), addend ? Var() : added,
                                        Activation::none, DType::none);
      return linear(in, l.weight.rounded(g, in.dtype()), l.bias(g),
                    {.conv1d = l.layout == Layout::in_out, .constant_weights = l.weight.constant(), .addend = addend},
                    added);
    };
    return l.adapter ? (*l.adapter)(in, affine(), o) : affine();
  };
  // One rank adds bias and residual, so that the sum contains them once. Their gradients are those of y, which all
  // ranks have.
  if (s.scheme == Sharing::conjugate) return leave(product(x, residual, s.rank > 0), axis);
  const Var y = s.scheme == Sharing::sequence
                    ? scatter_rows(product(x, {}, s.rank > 0), axis)
                    : gather_columns(product(gather_columns(x, axis), {}, false), axis, s.rank);
  return residual ? add(y, residual) : y;
}

}  // namespace

Var activated(const Var& x, Activation activation) {
  switch (activation) {
    case Activation::none: return x;
    case Activation::relu: return relu(x);
    case Activation::gelu_tanh: return gelu(x, {.form = Gelu::Form::tanh});
    case Activation::gelu_erf: return gelu(x, {.form = Gelu::Form::erf});
  }
  fail("nn", "there is no activation {}", static_cast<int>(activation));
}

Var Linear::operator()(const Input& input, Activation activation, const Var& residual, const ForwardOptions& o) const {
  const Var& x = input.value();
  Graph& g = x.graph();
  const auto scope = module_scope(g, weight);
  const auto with_factors = [&](Activation act, const Var& added) {
    const Var y = activated((*structured)(x, bias(g), act == Activation::none ? added : Var()), act);
    return act != Activation::none && added ? add(y, added) : y;
  };
  if (const auto* s = weight.shared_as(Place::rows)) return rows(*this, *s, x, activation, residual, o);
  const auto affine = [&](Activation act, const Var& added) {
    if (structured) return with_factors(act, added);
    if (narrow()) {
      const bool activates = act != Activation::none, conv1d = layout == Layout::in_out;
      const Var beside = activates ? Var() : added,
                y = activated(fp8 ? (*fp8)(input, weight, bias(g), beside, {.conv1d = conv1d})
                                  : (*mx4)(input, weight, bias(g), beside, conv1d, o.part),
                              act);
      return activates && added ? add(y, added) : y;
    }
    if (weight.quantized()) return weight.codec->multiply(weight.part_vars(g), x, bias(g), added, act, DType::none);
    return linear(x, weight.rounded(g, x.dtype()), bias(g),
                  {.activation = act, .conv1d = layout == Layout::in_out, .constant_weights = weight.constant()},
                  added);
  };
  if (!adapter && !chooses(o)) return affine(activation, residual);
  const auto adapted = [&](const Var& base) {
    return adapter ? (*adapter)(x, base, o) : (*choices)(x, base, o.batch->adapters);
  };
  if (activation == Activation::none) return adapted(affine(activation, residual));
  const Var y = activated(adapted(affine(Activation::none, {})), activation);
  return residual ? add(y, residual) : y;
}

Matrix<Var> Linear::matrix(Graph& g, DType x) const {
  require(layout == Layout::out_in || weight.quantized(), "nn", "{}: expected a matrix (out, in), got (in, out)",
          weight.name);
  if (!weight.quantized()) return {weight.rounded(g, x), {}, {}, bias(g)};
  require(weight.codec->matrix, "nn", "{}: no op with several layers reads a matrix in {}", weight.name,
          weight.codec->name);
  return weight.codec->matrix(weight.part_vars(g), bias(g));
}

Var mlp(const Linear& first, const Linear& second, const Var& x, Activation activation, const Var& residual) {
  const auto* s = second.weight.shared_as(Place::rows);
  if (s && s->scheme != Sharing::conjugate) return second(first(x, activation), Activation::none, residual);
  Graph& g = x.graph();
  require(first.layout == second.layout, "nn", "both layers of an MLP must have one layout");
  const Var y =
      mlp(x, first.weight.rounded(g, x.dtype()), first.bias(g), second.weight.rounded(g, x.dtype()), second.bias(g),
          residual, {.activation = activation, .conv1d = first.layout == Layout::in_out, .addend = s && s->rank > 0});
  return s ? leave(y, second.weight.axis()) : y;
}

}  // namespace hpcdl::nn

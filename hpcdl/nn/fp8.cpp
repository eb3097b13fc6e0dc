#include "hpcdl/nn/fp8.h"

#include "hpcdl/core/error.h"

namespace hpcdl::nn {
namespace {

void require_fitting(const Param& weight, std::int64_t tokens) {
  constexpr std::int64_t kStep = 16;
  const auto& w = weight.spec.shape;
  if (w[0] % kStep != 0 || w[1] % kStep != 0)
    fail_usage("fp8",
               "{} is {} x {} on each rank: products of 8-bit floats need multiples of {}; choose other sizes, or "
               "train.dtype = \"bf16\"",
               weight.name, w[0], w[1], kStep);
  if (tokens % kStep != 0)
    fail_usage("fp8",
               "{} multiplies {} tokens: products of 8-bit floats need multiples of {}; choose another train.batch or "
               "train.length, or train.dtype = \"bf16\"",
               weight.name, tokens, kStep);
}

}  // namespace

Var Fp8::operator()(const Input& input, const Param& weight, const Var& bias, const Var& residual,
                    const Form& form) const {
  const Var& x = input.value();
  Graph& g = x.graph();
  require_fitting(weight, x.shape().size() / x[-1]);
  const Var w = weight(g), history = history_ ? (*history_)(g) : Var();
  const auto cast = [&](const Var& v, bool both, int column) {
    return fp8_operand(g, v, {.scaling = scaling_, .both = both, .column = 3 * layer_ + column}, history);
  };
  const bool of_x = g.wants_gradient(w), of_w = g.wants_gradient(x);  // what the gradient of the other reads
  if (!input.cast_ || (of_x && input.cast_->qt.shape().size() == 0)) input.cast_ = cast(x, of_x, 0);
  const auto qw = cast(w, of_w || form.conv1d, 1);
  return fp8_layer(x, w, bias, residual, *input.cast_, form.conv1d ? qw.transposed() : qw, history,
                   {.scaling = scaling_, .conv1d = form.conv1d, .addend = form.addend, .layer = layer_});
}

}  // namespace hpcdl::nn

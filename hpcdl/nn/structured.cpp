#include "hpcdl/nn/structured.h"

#include <algorithm>
#include <cmath>

#include "hpcdl/core/error.h"
#include "hpcdl/ops/block_linear/block_linear.h"
#include "hpcdl/ops/linear/linear.h"

namespace hpcdl::nn {

Structured::Structured(std::int64_t inputs, std::int64_t outputs, const Structure& s, float std)
    : structure(s), in(inputs), out(outputs) {
  const auto B = s.blocks, r = s.rank;
  const bool whole = s.method == Method::svd;
  require(B >= 1 && (!whole || B == 1) && in % B == 0 && out % B == 0, "nn",
          "a {} matrix of {} x {} cannot have {} blocks: they must divide both", method_name(s.method), out, in, B);
  // All parts of a row share the bases of blast, so that more vectors than a part has outputs can be of use.
  const auto most = s.method == Method::blast ? std::min(in, out) : std::min(in, out) / B;
  require(r >= 1 && r <= most, "nn", "a {} matrix of {} x {} in {} blocks has a rank of 1 to {}, not of {}",
          method_name(s.method), out, in, B, most, r);
  if (whole) {
    input.spec = {{r, in}, DType::f32}, output.spec = {{out, r}, DType::f32};
  } else {
    const auto width = s.method == Method::monarch ? B * r : r;
    input.spec = {{B, width, in / B}, DType::f32}, output.spec = {{B, out / B, width}, DType::f32};
    if (s.method == Method::blast) scale.spec = {{r, B, B}, DType::f32};
  }
  for (auto* p : {&input, &output, &scale}) {
    p->init = Init::normal;
    p->decay = p->multiplied = true;
  }
  // Products of two normal numbers, `r` of which are added, have the deviation of the matrix.
  const auto terms = static_cast<float>(s.method == Method::monarch ? r * B : r);
  input.std = output.std = std::sqrt(std / std::sqrt(terms));
  scale.std = 1;
}

Var Structured::operator()(const Var& x, const Var& bias, const Var& residual) const {
  Graph& g = x.graph();
  const auto factor = [&](const Param& p) { return p.rounded(g, x.dtype()); };
  const auto B = structure.blocks;
  switch (structure.method) {
    case Method::svd:
      return linear(linear(x, factor(input), Var(), {.constant_weights = input.constant()}), factor(output), bias,
                    {.constant_weights = output.constant()}, residual);
    case Method::monarch: {
      const Var parts = block_linear(x, factor(input), {.groups = B});
      return block_linear(parts, factor(output), {.groups = structure.strided ? out / B : 1}, bias, residual);
    }
    case Method::blast: {
      const Var of_inputs = block_linear(x, factor(input), {.groups = structure.rank});  // (..., rank, B)
      const Var of_outputs = block_linear(of_inputs, factor(scale), {.groups = B});      // (..., B, rank)
      return block_linear(of_outputs, factor(output), {}, bias, residual);
    }
  }
  fail("nn", "there is no method {}", static_cast<int>(structure.method));
}

}  // namespace hpcdl::nn

#include "hpcdl/nn/adapter.h"

#include <cmath>

#include "hpcdl/ops/dropout/dropout.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/scale/scale.h"

namespace hpcdl::nn {

Adapter::Adapter(std::int64_t in, std::int64_t out, std::int64_t r, float s, float drop) : scale(s), dropout(drop) {
  a.spec = {{r, in}, DType::f32}, b.spec = {{out, r}, DType::f32};
  a.init = Init::uniform, a.std = 1 / std::sqrt(static_cast<float>(in));  // as torch's Linear and peft
  for (auto* m : {&a, &b}) m->decay = m->multiplied = true;
}

Var Adapter::operator()(const Var& x, const Var& base, const ForwardOptions& o) const {
  Graph& g = x.graph();
  const Graph::Scope scope(g, "lora");
  // A rank that has some columns of x drops others than the ranks that have the other columns.
  const auto* s = a.part.all() ? nullptr : a.sharing;
  const Var kept = dropout > 0 && o.training ? o.dropped(x, dropout, s ? s->size() : 1, s ? s->rank : 0) : x;
  const Var low = linear(kept, a.rounded(g, x.dtype()), Var(), {.constant_weights = a.constant()});
  return linear(this->scale == 1 ? low : hpcdl::scale(low, {.factor = this->scale}), b.rounded(g, x.dtype()), Var(),
                {.constant_weights = b.constant()}, base);
}

}  // namespace hpcdl::nn

#include "hpcdl/autocast.h"

#include <algorithm>

#include "hpcdl/core/error.h"
#include "hpcdl/graph.h"
#include "hpcdl/ops/cast/cast.h"

namespace hpcdl {
namespace {

/// The type that holds both.
DType widest(DType a, DType b) { return a == b || b == DType::none ? a : a == DType::none ? b : DType::f32; }

}  // namespace

std::string to_string(const AutocastPolicy& p) {
  const auto inside = [](DType t) {
    return t == DType::none ? std::string("as their input, f32 inside") : std::string(dtype_name(t));
  };
  return fmt::format(
      "products {} with f32 sums, norms {}, softmax {}, losses {}, element-wise ops as their inputs, optimizer F32",
      dtype_name(p.product), inside(p.norm), inside(p.softmax), inside(p.loss));
}

Graph::Autocast::Autocast(Graph& g, std::optional<AutocastPolicy> policy) : graph_(g), outer_(g.autocast_) {
  g.autocast_ = policy;
  if (!policy) return;
  for (int c = 1; c < kOpClasses; ++c) {
    const DType t = policy->of(static_cast<OpClass>(c));
    require(t == DType::none || t == DType::f32 || t == DType::bf16 || t == DType::f16, "autocast",
            "ops compute in F32, BF16 or F16, got {}", dtype_name(t));
  }
  auto& known = g.program_.autocasts;
  if (std::find(known.begin(), known.end(), to_string(*policy)) == known.end()) known.push_back(to_string(*policy));
}

/// Casts an input before an op whose policy requires a type.
void Graph::cast_inputs(const OpInfo& op, std::span<Var> in) {
  const auto casts = [&](std::size_t i) { return (op.casts >> i & 1u) && in[i] && is_float(in[i].dtype()); };
  DType to = autocast_->of(op.cls);
  if (to == DType::none)
    for (std::size_t i = 0; i < in.size(); ++i)
      if (casts(i)) to = widest(to, in[i].dtype());
  for (std::size_t i = 0; i < in.size(); ++i)
    if (casts(i)) in[i] = cast_once(in[i], to);
}

/// A cast of a value of a checkpointed segment is only reused within that segment: elsewhere it would be kept alive for
/// that.
Var Graph::cast_once(const Var& x, DType to) {
  if (x.dtype() == to) return x;
  const auto kind = program_.slots[static_cast<std::size_t>(x.operand().slot)].kind;
  const auto known = casts_.find({x.id(), to});
  if (known != casts_.end() && (known->second.segment == segment_ || kind == SlotKind::state))
    return var(known->second.value);
  const Var y = cast(x, to);
  casts_.insert_or_assign({x.id(), to}, KnownCast{y.id(), segment_});
  return y;
}

/// Memory that a raw record writes holds other values after it.
void Graph::forget_casts(std::span<const Operand> operands) {
  for (const auto& o : operands)
    if (o.slot >= 0 && o.access != Access::read)
      std::erase_if(casts_, [&](const auto& known) { return value(known.first.first).operand.slot == o.slot; });
}

}  // namespace hpcdl

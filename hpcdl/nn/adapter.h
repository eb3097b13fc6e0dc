#pragma once

#include <string_view>

#include "hpcdl/nn/context.h"
#include "hpcdl/nn/param.h"

namespace hpcdl::nn {

/// A trained addition of low rank r to a frozen matrix (out, in): scale * b a. Source: Hu et al., "LoRA: low-rank
/// adaptation of large language models", 2021. A fresh one adds nothing, because b is zero.
struct Adapter {
  Weight a, b;  // (r, in) and (out, r), whatever the layout of the matrix
  float scale = 1;
  float dropout = 0;  // of x, in training passes

  Adapter() = default;
  Adapter(std::int64_t in, std::int64_t out, std::int64_t r, float s, float drop);

  std::int64_t rank() const { return a.spec.shape[0]; }
  /// base + scale * (x a^T) b^T, where `base` (..., out) is what the matrix makes of x (..., in).
  Var operator()(const Var& x, const Var& base, const ForwardOptions& o) const;
  void visit(auto&& f) { f("lora_A.weight", a), f("lora_B.weight", b); }
};

/// Whether a parameter of this name belongs to an adapter.
inline bool is_of_adapter(std::string_view name) {
  return name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight");
}

}  // namespace hpcdl::nn

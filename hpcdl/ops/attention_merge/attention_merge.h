#pragma once
// Attention over two parts of the keys, from the results of each: with a and b the lse of a row,
//   lse = log(exp(a) + exp(b)),  out = exp(a - lse) out_a + exp(b - lse) out_b.
//
// out: (B, T, H*D) f32; lse: (B, H, T) f32, as ops/attention writes it. part: (B, t, H*D) of f32, bf16 or f16, and
// part_lse (B, H, t): the first t of the T queries of each sequence; the others keep what they have. An lse of -inf is a
// row that saw no key. The outputs may be the memory of `out` and `lse`. Not differentiable: the gradients of attention
// are sums over the parts.
//
// Source: Milakov & Gimelshein, "Online normalizer calculation for softmax", 2018; Liu et al., "Ring attention with
// blockwise transformers", 2023.

#include "hpcdl/op.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

struct AttentionMerge {
  static constexpr std::string_view name = "attention_merge";
  struct Args {};
  static std::array<Spec, 2> infer(const Spec& out, const Spec& lse, const Spec& part, const Spec& part_lse,
                                   const Args&);
  static Cost cost(const Spec&, const Spec&, const Spec& part, const Spec& part_lse, const Args&) {
    return {.operations = 3.0 * static_cast<double>(part.size()) + 60.0 * static_cast<double>(part_lse.size())};
  }
  static void forward(Stream& s, Tensor to, Tensor to_lse, View out, View lse, View part, View part_lse, const Args&);
};

namespace cpu {
template <class Isa>
void attention_merge(Isa, Pool&, Tensor to, Tensor to_lse, View out, View lse, View part, View part_lse);
}  // namespace cpu
namespace cuda {
void attention_merge(Stream&, Tensor to, Tensor to_lse, View out, View lse, View part, View part_lse);
}  // namespace cuda

inline void AttentionMerge::forward(Stream& s, Tensor to, Tensor to_lse, View out, View lse, View part, View part_lse,
                                    const Args&) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::attention_merge(isa, pool, to, to_lse, out, lse, part, part_lse); },
      [&](auto& queue) { cuda::attention_merge(queue, to, to_lse, out, lse, part, part_lse); });
}

}  // namespace hpcdl

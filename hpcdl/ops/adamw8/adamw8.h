#pragma once
// AdamW (ops/adamw) whose moments take 8 bits an element. Blocks of kBlock consecutive elements of a tensor, the last one
// maybe shorter, have one f32 scale for each moment; an element is a code that the block's scale multiplies:
//
//   m = scale * (c / 127)^2, with the sign of c,  c in [-127, 127]      v = scale * (c / 255)^4,  c in [0, 255]
//
// A code is the nearest one on the scale of roots, so that small elements of a block keep their relative precision: both
// moments of an element have about the same, because v is about m^2. A v above 0 has a code above 0: no update divides
// by eps alone. A new scale is the largest magnitude of its block, which is exact then; below kLeast it is kLeast, and 0
// if all elements are 0. The update of a step reads m and v before they are rounded. A block with a moment that is not
// finite has the scale NaN, so all of its elements are NaN in the next step: the run ends with a message and does not go
// on with other numbers.
//
// Simulated with noisy gradients whose sizes vary within a block (lognormal, sigma 0.5 and 1.5), the error of an update is
// 0.027 and 0.15 of its size with beta2 = 0.95; the dynamic 8-bit code of Dettmers et al. has 0.042, and more than 100:
// there a v becomes 0. Rounding at random, or by a low-discrepancy sequence, is worse than to the nearest: 0.032 to 0.038.
// Source of blocks: Dettmers et al., "8-bit optimizers via block-wise quantization", ICLR 2022.
//
// On a CPU. The bits do not depend on threads; parts of a tensor that begin with a block have the bits of the whole.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "hpcdl/ops/adamw/adamw.h"

namespace hpcdl {

struct AdamW8 {
  static constexpr std::string_view name = "adamw8";
  struct Args : AdamW::Args {};  // another type, for std::variant
  /// Elements of a block: two bytes for each, and eight for the block.
  static constexpr std::int64_t kBlock = 256;
  static constexpr float kMostM = 127, kMostV = 255;
  static constexpr float kLeast = 0x1p-120f;  // its inverse is finite

  static constexpr std::int64_t blocks(std::int64_t elements) { return (elements + kBlock - 1) / kBlock; }

  /// Operands of one tensor, in this order: value, gradient, m (i8), v (u8), copy (may be absent), scales of m and of v
  /// (f32, as many as blocks, any shape).
  static constexpr int kOperands = 7;
  using RecordArgs = detail::AdamWRecord;
  static void run(Stream& s, const Grad* operands, const void* args);
  static void check_record(const RawRecord& r);
};

/// A tensor as record_adamw8() takes it. `copy` may be a default Var.
template <Symbolic V> struct AdamW8Tensor {
  V value, gradient, m, v, copy = {}, m_scale, v_scale;
  bool decay = true;
};

namespace cpu {
/// tensors: count times AdamW8::kOperands. decays: one flag per tensor.
template <class Isa>
void adamw8(Isa, Pool&, const Grad* tensors, const std::uint8_t* decays, std::int64_t count, const AdamW::Step& step);
}  // namespace cpu

namespace detail {

struct AdamW8Specs {
  Spec value, gradient, m, v, copy, m_scale, v_scale;
};
void require_adamw8(const AdamW8Specs& s);

}  // namespace detail

/// Records one update of all tensors, which must be contiguous.
template <class Graph, Symbolic V>
void record_adamw8(Graph& g, std::span<const AdamW8Tensor<V>> tensors, const AdamW::Args& a) {
  using GraphOperand = decltype(read_operand(V()));
  std::vector<GraphOperand> operands;
  std::vector<std::byte> args(sizeof(detail::AdamWRecord) + tensors.size());
  detail::AdamWRecord head{a, static_cast<std::int64_t>(tensors.size())};
  clear_padding(head);
  std::memcpy(args.data(), &head, sizeof head);
  double elements = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& t = tensors[i];
    detail::require_adamw8({t.value.spec(), t.gradient.spec(), t.m.spec(), t.v.spec(), t.copy ? t.copy.spec() : Spec(),
                            t.m_scale.spec(), t.v_scale.spec()});
    operands.insert(operands.end(), {update_operand(t.value), read_operand(t.gradient), update_operand(t.m),
                                     update_operand(t.v), t.copy ? write_operand(t.copy) : GraphOperand(),
                                     update_operand(t.m_scale), update_operand(t.v_scale)});
    args[sizeof head + i] = static_cast<std::byte>(t.decay ? 1 : 0);
    elements += static_cast<double>(t.value.spec().size());
  }
  emit_update<AdamW8>(g, operands, args.data(), args.size(), {.operations = 30 * elements});
}

}  // namespace hpcdl

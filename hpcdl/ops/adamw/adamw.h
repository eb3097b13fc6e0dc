#pragma once
// AdamW over many tensors as one record. Per element, with t = StepParams::step + 1 and
// g = gradient * StepParams::grad_scale * StepParams::clip_factor:
//
//   p = p * (1 - lr * weight_decay)                      only for tensors that decay
//   m = beta1 * m + (1 - beta1) * g,   v = beta2 * v + (1 - beta2) * g^2
//   p = p - lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
//
// as torch.optim.AdamW does. A CPU and a GPU compute the same bits: every sum of a product is one fma, or none. With StepParams::skip nothing is changed. p: f32 or bf16, gradient: f32 or bf16, m and v:
// f32; `copy`, if present, receives p rounded to bf16 or f16 (the weights that a mixed-precision forward pass reads).
// Source: Loshchilov & Hutter, "Decoupled weight decay regularization", 2019.

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "hpcdl/core/device_macros.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/emit.h"

namespace hpcdl {

namespace detail {
struct AdamWRecord;
}

struct AdamW {
  static constexpr std::string_view name = "adamw";
  struct Args {
    double beta1 = 0.9, beta2 = 0.95;  // 1 - beta is computed before it is rounded to f32
    float eps = 1e-8f, weight_decay = 0.1f;
  };
  /// What the kernel needs besides the tensors: Args, the factors of this step, and which tensors decay.
  struct Step {
    Args args;
    float lr = 0, grad_scale = 1;
    float correction1 = 1, correction2 = 1;  // 1 - beta^t
  };
  /// Operands of one tensor, in this order: value, gradient, m, v, copy (may be absent).
  static constexpr int kOperands = 5;
  static Step step(const Args& a, const StepParams& p);
  /// beta^t by products alone: the functions pow() of a CPU and of a GPU differ in the last bit.
  HPCDL_HOST_DEVICE static double power(double beta, std::int64_t t) {
    double product = 1;
    for (; t > 0; t >>= 1, beta *= beta)
      if (t & 1) product *= beta;
    return product;
  }
  using RecordArgs = detail::AdamWRecord;
  static void run(Stream& s, const Grad* operands, const void* args);
  static void check_record(const RawRecord& r);
};

/// A tensor as record_adamw takes it. `copy` may be a default Var.
template <Symbolic V> struct AdamWTensor {
  V value, gradient, m, v, copy = {};
  bool decay = true;
};

namespace cpu {
/// tensors: count times AdamW::kOperands. decays: one flag per tensor.
template <class Isa>
void adamw(Isa, Pool&, const Grad* tensors, const std::uint8_t* decays, std::int64_t count, const AdamW::Step& step);
}  // namespace cpu
namespace cuda {
void adamw(Stream&, const Grad* tensors, const std::uint8_t* decays, std::int64_t count, const AdamW::Args& args);
}  // namespace cuda

namespace detail {

/// The record's arguments: this header, then one byte per tensor.
struct AdamWRecord {
  AdamW::Args args;
  std::int64_t count = 0;
};

inline void require_adamw(const Spec& value, const Spec& gradient, const Spec& m, const Spec& v, const Spec& copy) {
  require_float(AdamW::name, value, "parameter");
  require_float(AdamW::name, gradient, "gradient");
  require_shape(AdamW::name, "gradient", gradient, value.shape);
  require_spec(AdamW::name, "m", m, {value.shape, DType::f32});
  require_spec(AdamW::name, "v", v, {value.shape, DType::f32});
  require(value.dtype != DType::f16 && gradient.dtype != DType::f16, AdamW::name,
          "parameters and gradients must be F32 or BF16, got {} and {}", to_string(value), to_string(gradient));
  if (copy) require_spec(AdamW::name, "copy", copy, {value.shape, copy.dtype == DType::f16 ? DType::f16 : DType::bf16});
}

}  // namespace detail

/// Records one update of all tensors, which must be contiguous.
template <class Graph, Symbolic V>
void record_adamw(Graph& g, std::span<const AdamWTensor<V>> tensors, const AdamW::Args& a) {
  using GraphOperand = decltype(read_operand(V()));
  std::vector<GraphOperand> operands;
  std::vector<std::byte> args(sizeof(detail::AdamWRecord) + tensors.size());
  detail::AdamWRecord head{a, static_cast<std::int64_t>(tensors.size())};
  clear_padding(head);
  std::memcpy(args.data(), &head, sizeof head);
  double elements = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& t = tensors[i];
    detail::require_adamw(t.value.spec(), t.gradient.spec(), t.m.spec(), t.v.spec(), t.copy ? t.copy.spec() : Spec());
    operands.insert(operands.end(), {update_operand(t.value), read_operand(t.gradient), update_operand(t.m),
                                     update_operand(t.v), t.copy ? write_operand(t.copy) : GraphOperand()});
    args[sizeof head + i] = static_cast<std::byte>(t.decay ? 1 : 0);
    elements += static_cast<double>(t.value.spec().size());
  }
  emit_update<AdamW>(g, operands, args.data(), args.size(), {.operations = 14 * elements});
}
template <class Graph, Symbolic V>
void record_adamw(Graph& g, const std::vector<AdamWTensor<V>>& tensors, const AdamW::Args& a) {
  record_adamw(g, std::span<const AdamWTensor<V>>(tensors), a);
}

}  // namespace hpcdl

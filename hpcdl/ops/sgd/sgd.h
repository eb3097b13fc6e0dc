#pragma once
// Stochastic gradient descent over many tensors as one record. Per element, with g = gradient * StepParams::grad_scale
// * StepParams::clip_factor:
//
//   g = g + weight_decay * p                              only for tensors that decay
//   m = momentum * m + (1 - dampening) * g                with momentum; in step 0 of the run m = g, regardless of m
//   p = p - lr * (nesterov ? g + momentum * m : m)        without momentum: p - lr * g
//
// as torch.optim.SGD does. With StepParams::skip nothing is changed; if step 0 is skipped, m starts from the zeros it
// holds, which differs from torch only with dampening. p: f32 or bf16, gradient: f32 or bf16, m: f32; `copy`, if
// present, receives p rounded to bf16 or f16 (the weights that a mixed-precision forward pass reads). Source: Sutskever
// et al., "On the importance of initialization and momentum in deep learning", 2013.

#include <cstddef>
#include <span>
#include <vector>

#include "hpcdl/core/device_macros.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/emit.h"

namespace hpcdl {

namespace detail {
struct SgdRecord;
}

struct Sgd {
  static constexpr std::string_view name = "sgd";
  struct Args {
    float momentum = 0, dampening = 0;
    bool nesterov = false;
    float weight_decay = 0;
  };
  /// What the kernel needs besides the tensors: the factors of this step.
  struct Step {
    float lr = 0, grad_scale = 1, weight_decay = 0;
    float momentum = 0, rest = 1;  // m = momentum * m + rest * g
    float look_ahead = 0;          // p = p - lr * (look_ahead * m + along * g)
    float along = 1;
    bool first = false;  // m = g
  };
  /// Operands of one tensor, in this order: value, gradient, m (absent without momentum), copy (may be absent).
  static constexpr int kOperands = 4;
  HPCDL_HOST_DEVICE static Step step(const Args& a, const StepParams& p) {
    Step s;
    s.lr = p.lr, s.grad_scale = p.grad_scale * p.clip_factor, s.weight_decay = a.weight_decay;
    s.momentum = a.momentum, s.rest = 1.0f - a.dampening, s.first = p.step == 0;
    if (a.momentum != 0) s.look_ahead = a.nesterov ? a.momentum : 1.0f, s.along = a.nesterov ? 1.0f : 0.0f;
    return s;
  }
  using RecordArgs = detail::SgdRecord;
  static void run(Stream& s, const Grad* operands, const void* args);
  static void check_record(const RawRecord& r);
};

/// A tensor as record_sgd takes it. `copy` may be a default Var, and so may `m` without momentum.
template <Symbolic V> struct SgdTensor {
  V value, gradient, m = {}, copy = {};
  bool decay = true;
};

namespace cpu {
/// tensors: count times Sgd::kOperands. decays: one flag per tensor.
template <class Isa>
void sgd(Isa, Pool&, const Grad* tensors, const std::uint8_t* decays, std::int64_t count, const Sgd::Step& step);
}  // namespace cpu
namespace cuda {
void sgd(Stream&, const Grad* tensors, const std::uint8_t* decays, std::int64_t count, const Sgd::Args& args);
}  // namespace cuda

namespace detail {

/// The record's arguments: this header, then one byte per tensor.
struct SgdRecord {
  Sgd::Args args;
  std::int64_t count = 0;
};

inline void require_sgd(const Sgd::Args& a) {
  require(a.momentum >= 0 && a.weight_decay >= 0, Sgd::name,
          "momentum and weight decay must not be negative, got {} and {}", a.momentum, a.weight_decay);
  require(!a.nesterov || (a.momentum > 0 && a.dampening == 0), Sgd::name,
          "nesterov needs a momentum and no dampening, got {} and {}", a.momentum, a.dampening);
}
inline void require_sgd(const Spec& value, const Spec& gradient, const Spec& m, const Spec& copy, const Sgd::Args& a) {
  require_float(Sgd::name, value, "parameter");
  require_float(Sgd::name, gradient, "gradient");
  require_shape(Sgd::name, "gradient", gradient, value.shape);
  require(value.dtype != DType::f16 && gradient.dtype != DType::f16, Sgd::name,
          "parameters and gradients must be F32 or BF16, got {} and {}", to_string(value), to_string(gradient));
  if (a.momentum != 0) require_spec(Sgd::name, "m", m, {value.shape, DType::f32});
  else require(!m, Sgd::name, "without momentum there is no m, got {}", to_string(m));
  if (copy) require_spec(Sgd::name, "copy", copy, {value.shape, copy.dtype == DType::f16 ? DType::f16 : DType::bf16});
}

}  // namespace detail

/// Records one update of all tensors, which must be contiguous.
template <class Graph, Symbolic V>
void record_sgd(Graph& g, std::span<const SgdTensor<V>> tensors, const Sgd::Args& a) {
  using GraphOperand = decltype(read_operand(V()));
  detail::require_sgd(a);
  std::vector<GraphOperand> operands;
  std::vector<std::byte> args(sizeof(detail::SgdRecord) + tensors.size());
  detail::SgdRecord head{a, static_cast<std::int64_t>(tensors.size())};
  clear_padding(head);
  std::memcpy(args.data(), &head, sizeof head);
  double elements = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& t = tensors[i];
    detail::require_sgd(t.value.spec(), t.gradient.spec(), t.m ? t.m.spec() : Spec(), t.copy ? t.copy.spec() : Spec(),
                        a);
    operands.insert(operands.end(),
                    {update_operand(t.value), read_operand(t.gradient), t.m ? update_operand(t.m) : GraphOperand(),
                     t.copy ? write_operand(t.copy) : GraphOperand()});
    args[sizeof head + i] = static_cast<std::byte>(t.decay ? 1 : 0);
    elements += static_cast<double>(t.value.spec().size());
  }
  emit_update<Sgd>(g, operands, args.data(), args.size(), {.operations = 7 * elements});
}
template <class Graph, Symbolic V>
void record_sgd(Graph& g, const std::vector<SgdTensor<V>>& tensors, const Sgd::Args& a) {
  record_sgd(g, std::span<const SgdTensor<V>>(tensors), a);
}

}  // namespace hpcdl

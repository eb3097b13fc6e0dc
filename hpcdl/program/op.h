#pragma once
// The protocol of an op, which is a plain struct:
//
//   struct Softmax {
//     static constexpr std::string_view name = "softmax";
//     struct Args { float scale = 1; bool causal = false; };              // trivially copyable
//     static Spec infer(const Spec& x, const Args&);                        // or std::array<Spec, N> for N outputs
//     static Cost cost(const Spec& x, const Args&);                         // operations, and what cost.h says
//     static void forward(Stream&, Tensor y, View x, const Args&);         // outputs, inputs, forward scratch, Args
//     static void backward(Stream&, Grad dx, View y, View dy, const Args&);
//     using Backward = Operands<dIn<0>, Out<0>, dOut<0>>;                  // the operands of backward, in its order
//   };
//
// Optional members:
//   kAux                      how many trailing outputs only serve backward (row statistics, pre-activations)
//   scratch(specs..., args)   std::array<Spec, N> of forward scratch, appended after the inputs
//   backward_scratch(...)     the same for backward; named Scratch<I> in Backward
//   backward_cost(...)        default: twice the operations; with kSplits, as many as forward for each of the gradients
//                             of input 0 and of the split one
//   kInPlace                  true when output 0 may be the memory of input 0
//   kGathers                  backward adds to few rows of a gradient, selected by data: its cost counts none
//   kClass, kCasts            the op's class for autocast (graph/autocast.h), and which inputs it may cast, as a mask;
//                             default: nothing
// An absent optional input is a View that converts to false, and a Spec that does. A gradient that is not needed is a
// Grad that converts to false.

#include <array>
#include <string_view>

#include "hpcdl/core/stream.h"
#include "hpcdl/core/tensor.h"
#include "hpcdl/program/cost.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

/// The class of an op for mixed-precision policies. `other`: its inputs are not cast.
enum class OpClass : unsigned char { other, product, norm, softmax, loss, elementwise };
inline constexpr int kOpClasses = 6;

/// What follows a product in the same record.
enum class Activation : std::uint8_t { none, relu, gelu_tanh, gelu_erf };

enum class OperandKind : unsigned char { in, out, grad_in, grad_out, scratch };
struct OperandRef {
  OperandKind kind;
  int index;
};

template <int I> struct In {
  static constexpr OperandRef ref{OperandKind::in, I};
};
template <int I> struct Out {
  static constexpr OperandRef ref{OperandKind::out, I};
};
template <int I> struct dIn {
  static constexpr OperandRef ref{OperandKind::grad_in, I};
};
template <int I> struct dOut {
  static constexpr OperandRef ref{OperandKind::grad_out, I};
};
template <int I> struct Scratch {
  static constexpr OperandRef ref{OperandKind::scratch, I};
};
template <class... Ts> struct Operands {
  static constexpr std::array<OperandRef, sizeof...(Ts)> refs{Ts::ref...};
};

/// A recorded variable (graph/var.h). Ops use only the concept, so that ops/ need not include graph/: `record<Op>(args,
/// vars...)` is found by argument-dependent lookup.
template <class V>
concept Symbolic = requires { typename V::symbolic_tag; };

}  // namespace hpcdl

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
//   kClass, kCasts            the op's class for autocast (autocast.h), and which inputs it may cast, as a mask;
//                             default: nothing
// An absent optional input is a View that converts to false, and a Spec that does. A gradient that is not needed is a
// Grad that converts to false.

#include <array>
#include <cstdint>
#include <string_view>

#include "hpcdl/dtype.h"
#include "hpcdl/stream.h"
#include "hpcdl/tensor.h"

namespace hpcdl {

// The minimum work of a record. The speed of light follows from it (machine/speed_of_light.h).

/// The unit that performs a record's arithmetic. One unit per record is sufficient: if it has products, they account
/// for nearly all operations; everything else is computed in f32 for every storage type. exp and tanh count as
/// operations in f32, because no separate roof is measured for them.
enum class Unit : std::uint8_t { none, f32, tf32, bf16, f16, i8 };
inline constexpr std::string_view kUnitNames[] = {"-", "f32", "tf32", "bf16", "f16", "i8"};
constexpr std::string_view unit_name(Unit u) { return kUnitNames[static_cast<int>(u)]; }
/// For products of such operands.
constexpr Unit unit_of(DType d) { return d == DType::bf16 ? Unit::bf16 : d == DType::f16 ? Unit::f16 : Unit::f32; }

/// Bytes count once for each transfer to or from main memory that a record requires.
///
/// An op's `cost(specs, args)` and `backward_cost(specs, args)` also return a Cost: the operations, and everything that
/// does not follow from the operands. Their bytes are added to those of the operands (whole_cost() in program.h), and
/// may be negative: rows that a gather skips, a causal half, a second pass. Their unit may be `none`: it then follows
/// from the operands.
struct Cost {
  double operations = 0;   // a multiply-add counts as two
  Unit unit = Unit::none;  // none: no operations
  double reads = 0;        // bytes that are read and not written
  double writes = 0;       // bytes that are written and not read
  double updates = 0;      // bytes that are read and written in place
  double wire = 0;         // bytes that this rank sends to others, as ring algorithms do

  /// Total traffic to and from main memory.
  double bytes() const { return reads + writes + 2 * updates; }
  /// The size of the memory that is accessed.
  double footprint() const { return reads + writes + updates; }
  /// Sums the costs of a whole program; the unit does not change.
  Cost& operator+=(const Cost& o) {
    operations += o.operations;
    reads += o.reads, writes += o.writes, updates += o.updates;
    wire += o.wire;
    return *this;
  }
};

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

/// A recorded variable (graph.h). Ops use only the concept, so that ops/ need not include graph/: `record<Op>(args,
/// vars...)` is found by argument-dependent lookup.
template <class V>
concept Symbolic = requires { typename V::symbolic_tag; };

}  // namespace hpcdl

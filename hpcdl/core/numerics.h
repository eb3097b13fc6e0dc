#pragma once
// The freedom that the kernels of a program have in how they compute.

#include <cstdint>

namespace hpcdl {

/// How a GPU forms matrix products of f32 operands. Everything is stored, and added up, in f32 either way.
enum class F32Products : std::uint8_t {
  exact,  // of all 24 bits
  tf32,   // of operands cut to TF32's 11 significant bits on their way into the tensor cores: several times as fast
};

/// A property of a program, which its Instance hands to kernels by the stream. By default every op repeats its bits
/// from run to run.
struct Numerics {
  /// Convolutions of more than one pixel, products too small to matter, and CPUs are exact in either case.
  F32Products products = F32Products::exact;
  /// A GPU may add up in another order each time, where that is faster (gradients of attention).
  bool atomic_sums = false;
  /// A row of a result has the bits that it has alone, however many other rows there are. CPUs only.
  bool row_invariant = false;

  bool operator==(const Numerics&) const = default;
};

}  // namespace hpcdl

#pragma once
// How a GPU computes matrix products of f32 operands. In either case everything is stored and summed in f32.

#include "hpcdl/core/scoped_value.h"

namespace hpcdl {

enum class F32Products : unsigned char {
  exact,  // from all 24 bits
  tf32,   // from operands truncated to TF32's 11 significant bits for the tensor cores: several times as fast
};

namespace detail {
inline thread_local F32Products f32_products = F32Products::exact;
}

/// Applies to launches of the calling thread; captured work keeps the setting it was captured with. Convolutions larger
/// than 1 x 1, products too small to matter, and CPUs are always exact.
inline F32Products f32_products() { return detail::f32_products; }

/// Sets the mode for the lifetime of this object.
struct WithF32Products : private ScopedValue<F32Products> {
  explicit WithF32Products(F32Products p) : ScopedValue(detail::f32_products, p) {}
};

}  // namespace hpcdl

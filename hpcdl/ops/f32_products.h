#pragma once
// How a GPU forms matrix products of f32 operands. Everything is stored, and added up, in f32 either way.

#include "hpcdl/core/scoped_value.h"

namespace hpcdl {

enum class F32Products : unsigned char {
  exact,  // of all 24 bits
  tf32,   // of operands cut to TF32's 11 significant bits on their way into the tensor cores: several times as fast
};

namespace detail {
inline thread_local F32Products f32_products = F32Products::exact;
}

/// Of what the calling thread launches; captured work keeps what it was captured with. Convolutions of more than one
/// pixel, products too small to matter, and CPUs are exact whatever it says.
inline F32Products f32_products() { return detail::f32_products; }

/// Sets it for as long as this lives.
struct WithF32Products : private ScopedValue<F32Products> {
  explicit WithF32Products(F32Products p) : ScopedValue(detail::f32_products, p) {}
};

}  // namespace hpcdl

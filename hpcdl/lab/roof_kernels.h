#pragma once

#include <cstdint>

#include "hpcdl/simd/isa.h"

namespace hpcdl::cpu {

/// Each runs on the calling thread and returns the operations it did (or the bytes it moved).
template <class Isa> double spin_f32(Isa, std::int64_t rounds);
/// bf16 pairs into float. Where the set has no such instruction: what a kernel would do, widen and fma.
template <class Isa> double spin_bf16(Isa, std::int64_t rounds);
/// 8-bit products into 32-bit sums.
template <class Isa> double spin_i8(Isa, std::int64_t rounds);
template <class Isa> double sweep_read(Isa, const float* x, std::int64_t n);
/// Stores past the cache where the set can.
template <class Isa> double sweep_copy(Isa, float* y, const float* x, std::int64_t n);
/// Stores into the cache.
template <class Isa> double sweep_copy_cached(Isa, float* y, const float* x, std::int64_t n);

}  // namespace hpcdl::cpu

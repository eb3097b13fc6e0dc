#pragma once
// The first weights of a model, drawn fast: the same bits as one draw after the other.

#include <cstdint>

#include "hpcdl/core/pool.h"
#include "hpcdl/core/rng.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl::models {

/// values[i] = float(rng.normal(first + i)) * scale for i in [0, n), on all threads.
void draw_normal(Pool& pool, float* values, std::int64_t n, const Rng& rng, std::uint64_t first, float scale);
/// values[i] = (2 * rng.uniform(first + i) - 1) * scale.
void draw_uniform(Pool& pool, float* values, std::int64_t n, const Rng& rng, std::uint64_t first, float scale);

/// At most so many at a time.
inline constexpr std::int64_t kDrawChunk = 1024;

/// Draws n normal values as draw_normal() does, but for those whose bits it cannot tell: it writes their places to
/// `hard` and returns how many these are. -1: it has drawn nothing, there is no such kernel for this instruction set.
template <class Isa>
std::int64_t draw_normal_chunk(Isa, float* values, std::int64_t n, const Rng& rng, std::uint64_t first, float scale,
                               std::int32_t* hard);

}  // namespace hpcdl::models

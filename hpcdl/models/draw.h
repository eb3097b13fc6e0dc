#pragma once
// The initial weights of a model, drawn fast: with the same bits as sequential draws.

#include <cstdint>

#include "hpcdl/pool.h"
#include "hpcdl/rng.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl::models {

/// values[i] = float(rng.normal(first + i)) * scale for i in [0, n), on all threads.
void draw_normal(Pool& pool, float* values, std::int64_t n, const Rng& rng, std::uint64_t first, float scale);
/// values[i] = (2 * rng.uniform(first + i) - 1) * scale.
void draw_uniform(Pool& pool, float* values, std::int64_t n, const Rng& rng, std::uint64_t first, float scale);

/// The maximum number per call.
inline constexpr std::int64_t kDrawChunk = 1024;

/// Draws n normal values like draw_normal(), except for those whose bits it cannot determine: it writes their indices
/// to `hard` and returns their number. Returns -1, without drawing anything, if there is no such kernel for this
/// instruction set.
template <class Isa>
std::int64_t draw_normal_chunk(Isa, float* values, std::int64_t n, const Rng& rng, std::uint64_t first, float scale,
                               std::int32_t* hard);

}  // namespace hpcdl::models

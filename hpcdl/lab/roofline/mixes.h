#pragma once
// Access patterns in addition to one read stream and one copied stream. A roof is the best of all patterns: a roof must
// have tried everything that a kernel may do.

#include <cstdint>
#include <span>

#include "hpcdl/core/pool.h"
#include "hpcdl/lab/roofs.h"

namespace hpcdl::cpu {

/// Several streams at once, so that more lines are in flight; "past" means non-temporal stores if the set has them.
enum class Mix : std::uint8_t { read, copy_past, triad_past, write_past, write_set, update };

/// Runs on the calling thread over `n` floats, `repeats` times, and returns the bytes that it read and wrote.
template <class Isa> double sweep_mix(Isa, Mix, float* y, std::int64_t n, std::int64_t repeats);

}  // namespace hpcdl::cpu

namespace hpcdl::lab::roofline {

/// Raises memory_read and memory_copy to the best of these patterns, and measures memory_write, memory_update and the
/// update rates of the caches. `memory` must have been written, preferably by the threads that now read it, and must be
/// much larger than the caches.
void add_mixes(Roofs& roofs, Pool& pool, std::span<float> memory);

}  // namespace hpcdl::lab::roofline

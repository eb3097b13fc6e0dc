#pragma once
// Ways through memory beyond one stream that is read and one that is copied. A roof is the best of all ways: what a
// kernel may do, its roof must have done.

#include <cstdint>
#include <span>

#include "hpcdl/core/pool.h"
#include "hpcdl/lab/roofs.h"

namespace hpcdl::cpu {

/// Several streams at once, so that more lines are on their way; "past" stores go past the cache where the set can.
enum class Mix : std::uint8_t { read, copy_past, triad_past, write_past, write_set, update };

/// Runs on the calling thread over `n` floats, `repeats` times, and returns the bytes that it read and wrote.
template <class Isa> double sweep_mix(Isa, Mix, float* y, std::int64_t n, std::int64_t repeats);

}  // namespace hpcdl::cpu

namespace hpcdl::lab::roofline {

/// Raises memory_read and memory_copy to the best of these ways, and measures memory_write, memory_update and the
/// update rates of the caches. `memory` has been written to, by the threads that now read it at best, and well exceeds
/// the caches.
void add_mixes(Roofs& roofs, Pool& pool, std::span<float> memory);

}  // namespace hpcdl::lab::roofline

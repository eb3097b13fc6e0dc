#pragma once
// The loops that measure roofs. Each runs on the calling thread.

#include <cstdint>

#include "hpcdl/simd/isa.h"

namespace hpcdl::cpu {

/// Multiply-adds in registers; each returns the operations it did (a multiply-add is two).
template <class Isa> double spin_f32(Isa, std::int64_t rounds);
template <class Isa> double spin_f64(Isa, std::int64_t rounds);
/// bf16 pairs into float. If the set has no such instruction: as a kernel would do it, by widening and fma.
template <class Isa> double spin_bf16(Isa, std::int64_t rounds);
/// 8-bit products into 32-bit sums. If the set has no such instruction: as a kernel would do it.
template <class Isa> double spin_i8(Isa, std::int64_t rounds);
/// The same for bf16 or 8-bit values on tile registers, for a set that has them (the CPU must support IsaKind::amx).
template <class Isa> double spin_tiles(Isa, bool bytes, std::int64_t rounds);

/// Access patterns. "Streaming" means non-temporal stores if the set has them; otherwise a store first reads the line.
enum class Sweep : std::uint8_t {
  read,
  copy,
  copy_streaming,
  triad,
  triad_streaming,
  // Within y alone. A roof is the best of all ways: what a kernel may do, its roof must have done.
  read_streams,  // several at once, so that more lines are on their way
  copy_streams,  // streaming
  triad_streams,
  write_streams,
  write_set,  // memset
  update      // reads and writes of the same place
};

/// `repeats` sweeps over n floats of working set: read x[n]; y = x over halves of n; y = x + 0.5 z over thirds of n.
/// Returns the bytes the program names (a copy reads and writes each element). n: a multiple of 384, x, y, z: 64-byte
/// aligned.
template <class Isa>
double sweep(Isa, Sweep, float* y, const float* x, const float* z, std::int64_t n, std::int64_t repeats);

}  // namespace hpcdl::cpu

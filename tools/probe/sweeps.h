#pragma once
// Bandwidth and load latency of every level of memory.

#include "hpcdl/buffer.h"
#include "hpcdl/pool.h"
#include "tools/probe/probe.h"

namespace hpcdl::lab {

/// Memory that several threads sweep, each in its own part.
class SweepMemory {
 public:
  /// Memory for a working set of `bytes`, split over any pool of up to `pool.threads()`; touched by the threads of
  /// `pool`.
  SweepMemory(Pool& pool, std::int64_t bytes);
  /// Bytes moved by all threads, each with `bytes_per_thread` of working set (rounded down to whole vectors).
  double sweep(Pool& pool, cpu::Sweep kind, std::int64_t bytes_per_thread, std::int64_t repeats);
  /// The same over `windows` of some MiB of that working set, one after the other: before one is repeated, all others
  /// have passed through the caches. If the caches hold hundreds of MiB, sweeps over several times that size would take
  /// seconds.
  double walk(Pool& pool, cpu::Sweep kind, std::int64_t bytes_per_thread, std::int64_t windows);

 private:
  double run(Pool& pool, cpu::Sweep kind, std::int64_t part, std::int64_t offset, std::int64_t bytes,
             std::int64_t repeats);

  Buffer buffer_;
  std::int64_t window_ = 0;  // the next one
  std::vector<double> moved_;
};

/// Number of threads that share one cache of this level if `threads` run.
int sharers(const CacheLevel& level, int threads);
/// A working set for each of `threads` that fits into level `i` and exceeds the previous level.
std::int64_t bytes_within(const std::vector<CacheLevel>& caches, std::size_t i, int threads);
/// The same for memory: much more than all caches hold, but at most a quarter of the free memory.
std::int64_t bytes_beyond(const Machine& machine, int threads);

/// Fills `bandwidth` with every level and sweep for these threads; add_sweeps() has them measured.
void list_bandwidth(const Machine& machine, int threads, std::vector<Bandwidth>& bandwidth);
/// The ways beyond these, of which roofs take the best: of memory, and updates of the caches.
void list_mixes(const Machine& machine, int threads, std::vector<Bandwidth>& mixes);
/// Working sets of all sizes, of up to `most` bytes in all threads.
void list_stairs(const Machine& machine, int threads, int per_octave, double most, std::vector<Bandwidth>& stairs);

/// `list`, `pools` (by thread count) and `memory` must outlive the rounds. `walk`: level "memory" is walked
/// in windows, not swept.
void add_sweeps(Rounds& rounds, std::vector<Bandwidth>& list, const std::vector<Pool*>& pools, SweepMemory& memory,
                double seconds, bool walk);
void add_latency(Rounds& rounds, const Machine& machine, std::vector<LoadLatency>& list, double seconds);

}  // namespace hpcdl::lab

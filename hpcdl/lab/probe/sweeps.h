#pragma once
// Bandwidth and load latency of every level of the memory.

#include "hpcdl/core/buffer.h"
#include "hpcdl/core/pool.h"
#include "hpcdl/lab/probe/probe.h"

namespace hpcdl::lab {

/// Memory that several threads sweep over, each in its own part.
class SweepMemory {
 public:
  /// Room for `bytes` of working set split over any pool of up to `pool.threads()`; touched by the threads of `pool`.
  SweepMemory(Pool& pool, std::int64_t bytes);
  /// Bytes moved by all threads, each with `bytes_per_thread` of working set (rounded down to whole vectors).
  double sweep(Pool& pool, cpu::Sweep kind, std::int64_t bytes_per_thread, std::int64_t repeats);

 private:
  Buffer buffer_;
  std::vector<double> moved_;
};

/// Threads that share one cache of this level when `threads` of them run.
int sharers(const CacheLevel& level, int threads);
/// A working set for each of `threads` that stays within level `i` and outgrows the one before.
std::int64_t bytes_within(const std::vector<CacheLevel>& caches, std::size_t i, int threads);
/// The same for memory: several times what all caches hold, as far as a quarter of the free memory goes.
std::int64_t bytes_beyond(const Machine& machine, int threads);

/// Fills `bandwidth` with every level and sweep for these threads; add_sweeps() has them measured.
void list_bandwidth(const Machine& machine, int threads, std::vector<Bandwidth>& bandwidth);
void list_stairs(const Machine& machine, int threads, int per_octave, std::vector<Bandwidth>& stairs);

/// `list`, `pools` (by thread count) and `memory` must outlive the rounds.
void add_sweeps(Rounds& rounds, std::vector<Bandwidth>& list, const std::vector<Pool*>& pools, SweepMemory& memory, double seconds);
void add_latency(Rounds& rounds, const Machine& machine, std::vector<LoadLatency>& list, double seconds);

}  // namespace hpcdl::lab

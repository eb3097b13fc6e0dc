#pragma once
// The maximum performance of this machine, measured here and never taken from a datasheet.

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace hpcdl::lab {

/// One cache level as seen by all threads of the pool together. Bytes per second; a copy moves each byte twice.
struct CacheRoof {
  std::string name;           // "L1", "L2", "L3"
  double bytes = 0;           // capacity: private caches count once per thread
  double read = 0, copy = 0;  // arrays that stay within the level and exceed the previous one
  double update = 0;          // the same, read and written in place; 0: unknown
};

/// The rates of collectives between ranks. An axis of a mesh is identified by its number of ranks.
struct NetworkRoof {
  std::string device;  // "cpu", "cuda": where the tensors are
  int ranks = 0, hosts = 1;
  double bandwidth = 0;  // bytes per second that each rank sends, counted as Exchange::wire_bytes() does
  double latency = 0;    // seconds of the smallest collective
};

/// For all threads of the pool together. Operations and bytes per second.
struct Roofs {
  /// Fused multiply-adds count as two. On a GPU the best of its units: bf16, f16 and i8 of the tensor cores; f32 of the
  /// CUDA cores, or of the tensor cores if three tf32 products of parts, which preserve the accuracy, are faster. f32
  /// on the tile registers of a CPU: six bf16 products of parts.
  double f32 = 0, bf16 = 0, i8 = 0;
  double tf32 = 0;                             // of a GPU's tensor cores; 0: unknown
  double memory_read = 0, memory_copy = 0;     // arrays much larger than the cache; a copy moves each byte twice
  double memory_write = 0, memory_update = 0;  // only writes; reads and writes in place; 0: unknown
  double cache_read = 0;                       // arrays that stay within the last-level cache
  double cache_bytes = 0;                      // of the last level
  std::vector<CacheRoof> caches;               // innermost first; empty if the system does not report them
  double launch = 0;                           // minimum seconds per record: an empty one, of many in a row; 0: unknown
  std::vector<NetworkRoof> networks = {};      // measured on this machine (hpcdl bench comm)

  double memory() const { return memory_read > memory_copy ? memory_read : memory_copy; }
};

/// Adds the rates that `isa` reaches by products of parts.
inline Roofs with_parts(Roofs r, std::string_view isa) {
  if (isa == "amx") r.f32 = std::max(r.f32, r.bf16 / 6);
  return r;
}

/// The fastest measured network between this number of ranks; null: none.
const NetworkRoof* network_of(const Roofs& roofs, int ranks);

}  // namespace hpcdl::lab

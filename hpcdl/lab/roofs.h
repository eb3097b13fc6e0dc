#pragma once
// What this machine can do at most, measured here and never taken from a datasheet.

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/core/device.h"
#include "hpcdl/core/pool.h"

namespace hpcdl::lab {

/// One cache level as all threads of the pool together see it. Bytes per second; a copy moves each byte twice.
struct CacheRoof {
  std::string name;           // "L1", "L2", "L3"
  double bytes = 0;           // capacity: private caches count once per thread
  double read = 0, copy = 0;  // arrays that stay within the level and outgrow the one before
  double update = 0;          // the same, read and written in place; 0: not known
};

/// What ranks reach between them in collectives. An axis of a mesh is known by how many ranks it has.
struct NetworkRoof {
  std::string device;  // "cpu", "cuda": where the tensors lie
  int ranks = 0, hosts = 1;
  double bandwidth = 0;  // bytes per second that each rank sends, counted as Exchange::wire_bytes() does
  double latency = 0;    // seconds of the smallest collective
};

/// All threads of the pool together. Operations and bytes per second.
struct Roofs {
  /// Fused multiply-adds count as two. On a GPU the best of its units: bf16, f16 and i8 of the tensor cores; f32 of the
  /// plain cores, or of the tensor cores where three tf32 products of parts, which keep the accuracy, are faster. f32
  /// on the tile registers of a CPU: six bf16 products of parts.
  double f32 = 0, bf16 = 0, i8 = 0;
  double tf32 = 0;                             // of a GPU's tensor cores; 0: not known
  double memory_read = 0, memory_copy = 0;     // arrays well beyond the cache; a copy moves each byte twice
  double memory_write = 0, memory_update = 0;  // nothing but writes; reads and writes of the same place; 0: not known
  double cache_read = 0;                       // arrays that stay within the last-level cache
  double cache_bytes = 0;                      // of the last level
  std::vector<CacheRoof> caches;               // innermost first; empty where the system does not tell
  double launch = 0;  // seconds that a record takes at least: an empty one, of many in a row; 0: not known
  std::vector<NetworkRoof> networks = {};  // that were measured on this machine (hpcdl bench comm)

  double memory() const { return memory_read > memory_copy ? memory_read : memory_copy; }
};

/// With what `isa` reaches by products of parts.
inline Roofs with_parts(Roofs r, std::string_view isa) {
  if (isa == "amx") r.f32 = std::max(r.f32, r.bf16 / 6);
  return r;
}

/// Takes a second, or a few where caches of hundreds of MiB want as much memory to be touched first.
Roofs measure_roofs(Pool& pool);

/// The fastest that was measured between so many ranks; null: none.
const NetworkRoof* network_of(const Roofs& roofs, int ranks);

enum class Remember { measured, best };

/// What probe_file() (lab/remembered.h) says of this instruction set and thread count; where it says nothing,
/// measure_roofs(), and that is remembered. `best` measures again and keeps the higher of each (a busy machine measures
/// too low). A file that cannot be read or written is no error.
Roofs roofs(Pool& pool, Remember remember = Remember::measured);
/// The same of the device that programs run on: a GPU's, measured in less than a second where the file does not know
/// it, or of `pool`.
Roofs roofs(Device device, Pool& pool, Remember remember = Remember::measured);

}  // namespace hpcdl::lab

#pragma once
// What this machine can do at most, measured here and never taken from a datasheet, and what that makes of a program.

#include <string>
#include <vector>

#include "hpcdl/core/pool.h"
#include "hpcdl/graph/program.h"

namespace hpcdl::lab {

/// One cache level as all threads of the pool together see it. Bytes per second; a copy moves each byte twice.
struct CacheRoof {
  std::string name;         // "L1", "L2", "L3"
  double bytes = 0;         // capacity: private caches count once per thread
  double read = 0, copy = 0;  // arrays that stay within the level and outgrow the one before
  double update = 0;          // the same, read and written in place; 0: not known
};

/// All threads of the pool together. Operations and bytes per second.
struct Roofs {
  double f32 = 0, bf16 = 0, i8 = 0;           // fused multiply-adds count as two
  double memory_read = 0, memory_copy = 0;    // arrays several times the cache; a copy moves each byte twice
  double memory_write = 0, memory_update = 0; // nothing but writes; reads and writes of the same place; 0: not known
  double cache_read = 0;                      // arrays that stay within the last-level cache
  double cache_bytes = 0;                     // of the last level
  std::vector<CacheRoof> caches;              // innermost first; empty where the system does not tell

  double memory() const { return memory_read > memory_copy ? memory_read : memory_copy; }
};

/// Takes less than half a second.
Roofs measure_roofs(Pool& pool);

enum class Remember { measured, best };

/// What probe_file() (lab/remembered.h) says of this instruction set and thread count; where it says nothing, measure_roofs(),
/// and that is remembered. `best` measures again and keeps the higher of each (a busy machine measures too low).
/// A file that cannot be read or written is no error.
Roofs roofs(Pool& pool, Remember remember = Remember::measured);

/// Seconds below which no implementation of this record can get. Operands that fit the last-level cache are charged at
/// the speed of the cache, since an earlier record may have left them there.
double speed_of_light(const Program& program, const Record& record, const Roofs& roofs);
/// Sum over the records.
double speed_of_light(const Program& program, const Roofs& roofs);

}  // namespace hpcdl::lab

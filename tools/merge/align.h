#pragma once
// One clock for all ranks: the offset of the clock of each rank to that of the first.

#include <vector>

#include "tools/merge/rank_trace.h"

namespace hpcdl::lab {

enum class AlignedBy : unsigned char {
  reference,    // the first rank, whose clock is the reference
  host,         // the same host: the same clock
  pings,        // exchanges of clock readings
  collectives,  // collectives, which all ranks leave together
  steps,        // the beginning of steps: only as accurate as the load is balanced
  wall_clock,   // the clocks of the hosts: accurate to milliseconds under NTP
};
std::string_view aligned_name(AlignedBy by);

/// Time on the reference's clock = ts + offset + drift * ts, microseconds of the merged trace.
struct Alignment {
  int rank = 0;
  AlignedBy by = AlignedBy::reference;
  double offset = 0, drift = 0;
  double uncertainty = 0;  // microseconds, in either direction
  int samples = 0;         // pings, collectives or steps that were compared

  double at(double ts) const { return ts + offset + drift * ts; }
};

/// One for each trace, in their order, from the best source that a rank has, in the order of AlignedBy. `traces`
/// are of different ranks, the first one is the reference.
std::vector<Alignment> align(const std::vector<RankTrace>& traces);

}  // namespace hpcdl::lab

#pragma once
// One clock for all ranks: how far the clock of each is from that of the first.

#include <vector>

#include "hpcdl/lab/merge/rank_trace.h"

namespace hpcdl::lab {

enum class AlignedBy : unsigned char {
  reference,    // the first rank, whose clock is kept
  host,         // the same host: the same clock
  pings,        // exchanges of clock readings
  collectives,  // what all ranks left together
  steps,        // steps begin together: no better than the load is even
  wall_clock,   // the hosts' own idea of the time: good to milliseconds under NTP
};
std::string_view aligned_name(AlignedBy by);

/// Time on the reference's clock = ts + offset + drift * ts, microseconds of the merged trace.
struct Alignment {
  int rank = 0;
  AlignedBy by = AlignedBy::reference;
  double offset = 0, drift = 0;
  double uncertainty = 0;  // microseconds, either way
  int samples = 0;         // pings, collectives or steps that were compared

  double at(double ts) const { return ts + offset + drift * ts; }
};

/// One for each trace, in their order. The best source that a rank has is taken, in the order of AlignedBy. `traces`
/// are of different ranks, the first one is the reference.
std::vector<Alignment> align(const std::vector<RankTrace>& traces);

}  // namespace hpcdl::lab

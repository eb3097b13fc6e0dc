#pragma once
// From what all ranks say to one sentence about what went wrong.

#include <span>
#include <string>
#include <vector>

#include "hpcdl/comm/watch/report.h"

namespace hpcdl::comm {

struct Verdict {
  std::vector<int> blamed;  // ranks; never empty
  std::string
      sentence;  // "[dist] rank 1 on node7 ...": who, where, what it was doing, and who waits for it in which operation
};

/// `asker`: the rank whose wait came to its deadline, -1: none did, a connection broke; `peer`: whom it waited for, -1:
/// not known. A pure function, so that ranks that know the same say the same.
Verdict judge(std::span<const RankState> ranks, int asker, int peer);

/// "rank 3 on node7"
std::string named(std::span<const RankState> ranks, int rank);
/// "2.5 s"
std::string format_age(double seconds);

}  // namespace hpcdl::comm

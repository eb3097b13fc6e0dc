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
  bool vague = false;  // what ranks say a moment later, of their waits or of an error, may tell more
};

/// A rank whose wait has failed.
struct Stuck {
  int rank = -1, peer = -1;  // who waited, and for whom; -1: not known
  std::string why = {};  // where it was not the deadline: what the transport said, such as a message of another size
};

/// `stuck`: the ranks whose waits have failed, the first of them first; none: a connection broke. A pure function, so
/// that ranks that know the same say the same.
Verdict judge(std::span<const RankState> ranks, std::span<const Stuck> stuck);
/// Of one rank, whose wait came to its deadline; -1: none did.
Verdict judge(std::span<const RankState> ranks, int asker, int peer);
/// Of a rank that has not run for so long that all others have left it.
Verdict judge_pause(std::span<const RankState> ranks, int rank, double seconds);

/// "rank 3 on node7"
std::string named(std::span<const RankState> ranks, int rank);
/// "2.5 s"
std::string format_age(double seconds);

}  // namespace hpcdl::comm

#pragma once
// Derives one sentence about what went wrong from the reports of all ranks.

#include <span>
#include <string>
#include <vector>

#include "hpcdl/comm/watch/report.h"

namespace hpcdl::comm {

struct Verdict {
  std::vector<int> blamed;  // ranks; never empty
  std::string
      sentence;        // "[dist] rank 1 on node7 ...": the rank, where and in what it is, and who waits for it in what
  bool vague = false;  // later reports of waits or of an error may say more
};

/// A rank whose wait has failed.
struct Stuck {
  int rank = -1, peer = -1;  // the rank that waited, and the one it waited for; -1: not known
  std::string why = {};  // if it was not the deadline: the error of the transport, such as a message of another size
};

/// `stuck`: the ranks whose waits have failed, the first of them first; none: a connection broke. A pure function, so
/// ranks with the same facts give the same verdict.
Verdict judge(std::span<const RankState> ranks, std::span<const Stuck> stuck);
/// The verdict from one rank's own knowledge, whose wait reached its deadline; -1: none did.
Verdict judge(std::span<const RankState> ranks, int asker, int peer);
/// The verdict for a rank that has not run for so long that all others have ended.
Verdict judge_pause(std::span<const RankState> ranks, int rank, double seconds);

/// "rank 3 on node7"
std::string named(std::span<const RankState> ranks, int rank);
/// "2.5 s"
std::string format_age(double seconds);

}  // namespace hpcdl::comm

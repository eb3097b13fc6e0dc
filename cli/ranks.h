#pragma once
// The processes of `hpcdl launch`: started together, their lines told apart, ended together.

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace hpcdl::cli {

/// How one of them ended.
struct RankEnd {
  int rank = 0;
  int code = 0;          // exit code; with a signal: 128 + its number, as shells have it
  int signal = 0;        // 0: none
  std::string why = {};  // what happened to it, in words; empty: the two above say it
  bool good() const { return code == 0; }
  bool saved() const;        // asked to stop, it has saved
  std::string text() const;  // "rank 1 was killed by signal 9 (Killed)"
};

struct RanksOptions {
  std::string program;  // sought in PATH when there is no slash in it
  std::vector<std::string> words;
  int count = 1;
  int first = 0, world = 0;  // where other hosts have ranks, too: the first of them here, all of them; 0: these are all
  int host = 0;              // number of this host
  std::map<std::string, std::string> environment;  // of all ranks, in addition
  bool for_others = false;                 // another program tells lines apart and says when to end: see hosts.cpp
  bool plain = false;                      // rank 0's standard output as it is, for programs that read it
  std::chrono::milliseconds grace{10000};  // after a rank has failed: for the others to leave, and again after SIGTERM
};

struct RanksResult {
  std::vector<RankEnd> ends;  // in the order in which they ended
  int asked = 0;              // the signal that was passed on; 0: none
  int lost_lines = 0;         // an errno: lines of the ranks could not be written; 0: all were
  /// How the rank ended that the others followed: the first that failed, but none that only tells of a lost one (71)
  /// where another ended by an error of its own, which may take longer to leave; else the first that wants to be
  /// started again. Null: all went well.
  const RankEnd* cause() const;
  /// Of all together: that one's own code; 71 where it was killed; 0 without one.
  int code() const;
};

/// Runs them to their end. Each leads a process group of its own, and has RANK and so on as torchrun sets them. Lines
/// on their standard output and error come out on ours after "[rank N] ". SIGTERM, SIGINT and SIGUSR1 are passed on,
/// also while our output is not read; SIGHUP is passed on as SIGTERM. The same signal twice at once counts as one, and
/// the third kills. When a rank fails, or a signal that was passed on ends one, the others get `grace` to leave by
/// themselves, then SIGTERM, then SIGKILL. What they started and left behind is killed with them.
RanksResult run_ranks(const RanksOptions& options);

}  // namespace hpcdl::cli

#pragma once
// The processes of `hpcdl launch`: started together, their lines labelled, ended together.

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace hpcdl::cli {

/// How a rank ended.
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
  std::string program;  // searched in PATH if it has no slash
  std::vector<std::string> words;
  int count = 1;
  int first = 0, world = 0;  // where other hosts have ranks, too: the first of them here, all of them; 0: these are all
  int host = 0;              // number of this host
  std::map<std::string, std::string> environment;  // of all ranks, in addition
  bool for_others = false;                 // another program tells lines apart and says when to end: see hosts.cpp
  bool plain = false;                      // rank 0's standard output as it is, for programs that read it
  std::chrono::milliseconds grace{10000};  // after a rank has failed: for the others to end, and again after SIGTERM
};

struct RanksResult {
  std::vector<RankEnd> ends;  // in the order in which they ended
  int asked = 0;              // the signal that was passed on; 0: none
  int lost_lines = 0;         // an errno: lines of the ranks could not be written; 0: all were
  /// How the rank ended that caused the others to end: the first that failed, but not one that only reports a lost rank
  /// (71) if another ended by its own error, which may take longer; else the first that asks to be
  /// started again. Null: all went well.
  const RankEnd* cause() const;
  /// The exit code of the launch: that of this rank; 71 if it was killed; 0 if all went well.
  int code() const;
};

/// Runs the ranks to their end. Each leads its own process group, and has RANK and so on as torchrun sets them. Lines
/// on their standard output and error come out on ours after "[rank N] ". SIGTERM, SIGINT and SIGUSR1 are passed on,
/// even while our output is not read; SIGHUP is passed on as SIGTERM. The same signal twice at once counts as one, and
/// the third kills. When a rank fails, or a signal that was passed on ends one, the others have `grace` to end by
/// themselves, then get SIGTERM, then SIGKILL. Processes that they started are killed with them.
RanksResult run_ranks(const RanksOptions& options);

}  // namespace hpcdl::cli

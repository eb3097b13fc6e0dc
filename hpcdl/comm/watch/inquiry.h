#pragma once
// What one watchdog knows about all ranks, and the inquiry of rank 0. For one thread.

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/comm/transport.h"
#include "hpcdl/comm/watch/channel.h"
#include "hpcdl/comm/watch/report.h"
#include "hpcdl/comm/watch/verdict.h"

namespace hpcdl::comm {

class Inquiry {
 public:
  /// `settle`: time to collect the reports of other waiting ranks, if the report of one is not conclusive.
  Inquiry(const Channel& channel, std::chrono::nanoseconds patience, std::chrono::nanoseconds settle);

  void heard(int rank, const Report& report, bool answer);
  void gone(int rank, const std::string& why);
  void finished(int rank) { state(rank).kind = RankState::Kind::finished; }
  bool has_finished(int rank) const { return ranks_[static_cast<std::size_t>(rank)].kind == RankState::Kind::finished; }
  /// Ranks that are not gone, failed or finished, without this rank.
  std::vector<int> reachable() const;

  /// Rank 0 asks all: on behalf of the rank that could not continue, or of none (rank -1). False if an inquiry is
  /// running; the report of that rank counts anyway.
  bool begin(const Stuck& stuck);
  /// Every reachable rank has answered, while asking.
  bool complete() const;
  /// All have answered, but ranks that have not yet reported their wait could add more: it is worth waiting for
  /// deadline(), which is soon.
  bool may_learn(const Report& mine);
  Deadline deadline() const { return deadline_; }
  void end() { deadline_ = Deadline::max(), asking_ = false; }
  /// `mine`: what this rank is doing.
  std::string verdict(const Report& mine);
  /// The verdict that this rank has ended by an error.
  std::string failed(int rank, std::string_view why, const Report& mine);
  /// The verdict that this rank has not run for that many seconds, if all others have left meanwhile; otherwise empty.
  std::string paused(const Report& mine, double seconds);
  /// The verdict of a rank that gets no answer from rank 0.
  std::string without_keeper(const Report& mine);

 private:
  RankState& state(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  void set_mine(const Report& mine);
  void set_ages();

  int rank_;
  std::chrono::nanoseconds patience_, settle_;
  std::vector<RankState> ranks_;
  std::vector<Deadline> heard_at_;  // zero: never
  bool asking_ = false;
  std::vector<Stuck> stuck_;  // of several ranks, the first of them first
  Deadline learn_by_{};
  Deadline deadline_ = Deadline::max();
};

}  // namespace hpcdl::comm

#pragma once
// What one watchdog knows of all ranks, and rank 0's round of questions. Of one thread.

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
  /// `settle`: how long others that wait are listened to, where what one says of its wait tells little.
  Inquiry(const Channel& channel, std::chrono::nanoseconds patience, std::chrono::nanoseconds settle);

  void heard(int rank, const Report& report, bool answer);
  void gone(int rank, const std::string& why);
  void finished(int rank) { state(rank).kind = RankState::Kind::finished; }
  bool has_finished(int rank) const { return ranks_[static_cast<std::size_t>(rank)].kind == RankState::Kind::finished; }
  /// Not gone, failed or finished; apart from this rank.
  std::vector<int> reachable() const;

  /// Rank 0 asks all: on behalf of the rank that could not go on, or of none (rank -1). False when it asks already;
  /// what that rank says counts all the same.
  bool begin(const Stuck& stuck);
  /// Every reachable rank has answered, while asking.
  bool complete() const;
  /// All have answered, but ranks that have not yet said that they wait would tell more: it is worth waiting for
  /// deadline(), which is soon.
  bool may_learn(const Report& mine);
  Deadline deadline() const { return deadline_; }
  void end() { deadline_ = Deadline::max(), asking_ = false; }
  /// `mine`: what this rank is doing.
  std::string verdict(const Report& mine);
  /// That this rank has ended by an error.
  std::string failed(int rank, std::string_view why, const Report& mine);
  /// That this rank has not run for so many seconds, where all others have left meanwhile; else empty.
  std::string paused(const Report& mine, double seconds);
  /// Of a rank that gets no word from rank 0.
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

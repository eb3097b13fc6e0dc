#pragma once
// What one watchdog knows of all ranks, and rank 0's round of questions. Of one thread.

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/comm/transport.h"
#include "hpcdl/comm/watch/channel.h"
#include "hpcdl/comm/watch/report.h"

namespace hpcdl::comm {

class Inquiry {
 public:
  Inquiry(const Channel& channel, std::chrono::nanoseconds patience);

  void heard(int rank, const Report& report, bool answer);
  void gone(int rank, const std::string& why);
  void finished(int rank) { state(rank).kind = RankState::Kind::finished; }
  bool has_finished(int rank) const { return ranks_[static_cast<std::size_t>(rank)].kind == RankState::Kind::finished; }
  /// Not gone, failed or finished; apart from this rank.
  std::vector<int> reachable() const;

  /// Rank 0 asks all: on behalf of the rank that could not go on, or of -1. False when it asks already.
  bool begin(int asker, int peer);
  /// Every reachable rank has answered, while asking.
  bool complete() const;
  Deadline deadline() const { return deadline_; }
  void end() { deadline_ = Deadline::max(), asking_ = false; }
  /// `mine`: what this rank is doing.
  std::string verdict(const Report& mine);
  /// That this rank has ended by an error.
  std::string failed(int rank, std::string_view why, const Report& mine);
  /// Of a rank that gets no word from rank 0.
  std::string without_keeper(const Report& mine);

 private:
  RankState& state(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  void set_mine(const Report& mine);
  void set_ages();

  int rank_;
  std::chrono::nanoseconds patience_;
  std::vector<RankState> ranks_;
  std::vector<Deadline> heard_at_;  // zero: never
  bool asking_ = false;
  int asker_ = -1, peer_ = -1;
  Deadline deadline_ = Deadline::max();
};

}  // namespace hpcdl::comm

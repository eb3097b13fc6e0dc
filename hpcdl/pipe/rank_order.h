#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "hpcdl/pipe/schedule.h"

namespace hpcdl::pipe {

/// Builds the order of one rank. The micro-batches of each (act, stage) come in ascending order, so gradients are
/// always added in the same order.
class RankOrder {
 public:
  RankOrder(int stages, int micros) : micros_(micros), next_(static_cast<std::size_t>(stages * kActs)) {}

  /// Adds the next micro-batch; false if all of them have been added.
  bool add(Act act, int stage) {
    int& next = next_[index(act, stage)];
    if (next == micros_) return false;
    actions_.push_back({.act = act, .stage = static_cast<std::int16_t>(stage), .micro = next++});
    return true;
  }
  /// How many micro-batches have been added.
  int count(Act act, int stage) const { return next_[index(act, stage)]; }
  std::vector<Action> take() { return std::move(actions_); }

 private:
  static std::size_t index(Act act, int stage) {
    return static_cast<std::size_t>(stage * kActs + static_cast<int>(act));
  }

  int micros_;
  std::vector<int> next_;
  std::vector<Action> actions_;
};

/// An empty schedule whose stage s is on rank s % ranks.
inline Schedule looping(int ranks, int stages, int micros) {
  Schedule s{.micros = micros};
  for (int stage = 0; stage < stages; ++stage) s.forward_rank.push_back(static_cast<std::int16_t>(stage % ranks));
  s.backward_rank = s.forward_rank;
  return s;
}

}  // namespace hpcdl::pipe

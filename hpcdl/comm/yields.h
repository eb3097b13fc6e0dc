#pragma once
// Waiting by yields, where that works.

#include <algorithm>
#include <chrono>
#include <thread>

#include "hpcdl/comm/transport.h"

namespace hpcdl::comm {

/// Lets others on this core run; for one thread. Beside another program that computes, that hands over a slice of the
/// scheduler's, milliseconds long, and Linux from 6.18 on counts it as used by who yields: a rank that yields hardly
/// runs then, and one that naps does. So one long yield is followed by a time of naps, the longer the more often that
/// happens.
class Yields {
 public:
  /// false: it is the time of naps.
  bool yield() {
    const auto begin = Clock::now();
    if (begin < naps_until_) return false;
    std::this_thread::yield();
    const auto end = Clock::now();
    if (end - begin < kSlice) return true;
    naps_ = begin - naps_until_ < 4 * naps_ ? std::min(2 * naps_, kMost) : kLeast;
    naps_until_ = end + naps_;
    return true;
  }

 private:
  using milliseconds = std::chrono::milliseconds;
  static constexpr milliseconds kSlice{1}, kLeast{10}, kMost{320};
  milliseconds naps_ = kLeast;
  Deadline naps_until_{};
};

}  // namespace hpcdl::comm

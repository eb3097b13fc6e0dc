#pragma once
// Waiting by yields, if that works.

#include <algorithm>
#include <chrono>
#include <thread>

#include "hpcdl/comm/transport.h"

namespace hpcdl::comm {

/// Lets other threads of this core run; for one thread. If another program computes, a yield gives it a time slice of
/// the scheduler, milliseconds long, and Linux from 6.18 on charges it to the thread that yields: a rank that
/// yields hardly runs then, but one that naps does. So a long yield is followed by a time of naps, which is longer
/// the more often that happens.
class Yields {
 public:
  /// False during a time of naps.
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

#pragma once
// What ranks learn while they stage long sums: whether it is faster to store bytes through the caches of a core or past
// them, and whether the ranks run at the same time.

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <utility>

namespace hpcdl::comm::algo {

/// Cache lines that one core has written come to another from its caches or from memory, and which is faster depends on
/// where the two cores are. A virtual machine changes between the two cases within a second: a sum of 16 MiB of two
/// ranks of a Zen 4 takes 1.6 ms with cached stores and 2.4 ms past the caches, or 8.3 and 2.5 ms. So both are
/// measured again and again. All ranks of a group give took_before() the same numbers, and so always choose alike.
class StoreChoice {
 public:
  /// Whether the bytes of the stretch of staging that begins now bypass the caches.
  bool begin() {
    const bool trial = --until_trial_ <= 0;
    if (trial) until_trial_ = interval_, interval_ = std::min(2 * interval_, kLongest);
    before_ = std::exchange(now_, trial != best_);
    return now_;
  }
  /// The time that the stretch before the current one took on the slowest rank. The shortest of some stretches counts:
  /// during the others another program may have had the processor.
  void took_before(std::int64_t nanoseconds) {
    Recent& recent = recent_[before_];
    recent.time[recent.next++ % kKept] = nanoseconds;
    const bool best = recent_[true].shortest() < recent_[false].shortest();
    if (best != best_) best_ = best, until_trial_ = interval_ = kFirst;
  }

 private:
  static constexpr std::size_t kKept = 4;
  static constexpr int kFirst = 4, kLongest = 64;  // stretches between two trials of the slower choice
  struct Recent {
    std::array<std::int64_t, kKept> time;
    std::size_t next = 0;
    Recent() { time.fill(std::numeric_limits<std::int64_t>::max()); }
    std::int64_t shortest() const { return *std::min_element(time.begin(), time.end()); }
  };

  std::array<Recent, 2> recent_;                      // through the caches, and past them
  bool best_ = false, before_ = false, now_ = false;  // past the caches
  int until_trial_ = kFirst, interval_ = kFirst;
};

/// How often ranks wait for each other as long as the scheduler lets another program run. They then advance by one
/// phase in that time, and reading, which takes few phases but more work, ends sooner. As with StoreChoice,
/// all ranks know the same.
class Apart {
 public:
  void took(std::int64_t nanoseconds, int ranks) {
    last_ = last_ << 1 | static_cast<std::uint16_t>(nanoseconds > kLong * std::max(1, ranks / 2));
  }
  /// A sum that was read tells nothing about staging: old observations fade, and staging is tried again.
  void read() { last_ = last_ << 1; }
  /// The number of stretches. A slow stretch of 1 MiB takes 4 ms, a fast one 0.1; reading takes 0.3, and the phases of
  /// a whole sum 8.
  bool reading_pays(std::int64_t stretches) const { return (std::popcount(last_) - 1) * stretches > 2 * 16; }

 private:
  static constexpr std::int64_t kLong = 2'000'000;  // nanoseconds
  std::uint16_t last_ = 0;                          // one bit for each of the last 16 stretches: it was slow
};

/// What one rank knows about the staging of its group.
struct StagingTrials {
  StoreChoice choice;
  Apart apart;
  std::int64_t nanoseconds = 0;  // time of its last stretch, which it has not sent yet; 0: not measured
};

}  // namespace hpcdl::comm::algo

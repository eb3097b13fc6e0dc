#include "hpcdl/comm/transport.h"

#include <algorithm>
#include <thread>

namespace hpcdl::comm {
namespace {

using std::chrono::microseconds, std::chrono::milliseconds;

/// Lets others on this core run. Beside another program that computes, that hands over a slice of the scheduler's,
/// milliseconds long, and Linux from 6.18 on counts it as used by who yields: a rank that yields hardly runs then, and
/// one that naps does. So one long yield is followed by a time of naps, the longer the more often that happens.
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
  static constexpr milliseconds kSlice{1}, kLeast{10}, kMost{320};
  milliseconds naps_ = kLeast;
  Deadline naps_until_{};
};

}  // namespace

void Peers::wait_slowly(int peer, bool (*ready)(void*), void* context) {
  // Yields let a rank on the same core go on at once; naps come when the wait is for somebody's work and not for a
  // message.
  constexpr int kYields = 200;
  constexpr microseconds kShortest{20}, kLongest{500};
  static thread_local Yields yields;
  if (deadline_ == Deadline{}) deadline_ = Clock::now() + patience_.deadline;
  microseconds nap = kShortest;
  for (int turn = 0; !ready(context); ++turn) {
    if (turn < kYields && yields.yield()) continue;
    if (patience_.given_up && patience_.given_up->load(std::memory_order_relaxed))
      throw PeerLost("[comm] given up: this rank leaves", peer);
    try {
      transport_.check(peer);
    } catch (const PeerLost&) {
      if (ready(context)) return;  // what it has done since, before it left, counts
      throw;
    }
    if (Clock::now() >= deadline_) {
      const auto who =
          peer < 0 ? std::string("its peers") : fmt::format("rank {} on {}", peer, transport_.host_name(peer));
      throw PeerLost(fmt::format("nothing came from {} in {:.3g} s", who,
                                 std::chrono::duration<double>(patience_.deadline).count()),
                     peer);
    }
    transport_.nap(nap);
    nap = std::min(nap * 2, kLongest);
  }
}

}  // namespace hpcdl::comm

#include "hpcdl/comm/transport.h"

#include <algorithm>
#include <utility>

#include "hpcdl/comm/yields.h"

namespace hpcdl::comm {
namespace {

/// Polls for as long as a short nap of the other side takes, some 75 us with what the timer adds, and some more. A rank
/// that naps is late for the next message: were that waited for by a nap as well, one nap would follow from the other
/// for ever, and a message of 3 us would take 60.
bool poll_through_nap(bool (*ready)(void*), void* context) {
  constexpr std::chrono::microseconds kPoll{200};
  constexpr int kLeast = 16, kPolls = 64;
  const auto until = Clock::now() + kPoll;
  for (int round = 0; round < kLeast || Clock::now() < until; ++round)
    for (int i = 0; i < kPolls; ++i) {
      if (ready(context)) return true;
      relax();
    }
  return false;
}

}  // namespace

void Peers::wait_slowly(int peer, bool (*ready)(void*), void* context) {
  using std::chrono::microseconds;
  // Yields let a rank on the same core go on at once; naps come when the wait is for somebody's work and not for a
  // message.
  constexpr int kYields = 200;
  constexpr int kEager = 1000;  // spins where each rank has a processor: elsewhere polling keeps the others from theirs
  constexpr microseconds kShortest{20}, kLongest{500};
  thread_local Yields yields;
  if (deadline_ == Deadline{}) deadline_ = Clock::now() + patience_.deadline;
  microseconds nap = kShortest;
  bool polls = patience_.spins >= kEager;
  for (int turn = 0; !ready(context); ++turn) {
    if (turn < kYields && yields.yield()) continue;
    if (std::exchange(polls, false) && poll_through_nap(ready, context)) return;
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

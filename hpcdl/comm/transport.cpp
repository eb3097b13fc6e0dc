#include "hpcdl/comm/transport.h"

#include <algorithm>
#include <utility>

#include "hpcdl/comm/turn.h"
#include "hpcdl/comm/yields.h"

namespace hpcdl::comm {
namespace {

/// Polls ready() for this time, and at least a few times: another program may have the
/// processor meanwhile. Ends early if another thread wants the turn.
bool poll_for(std::chrono::nanoseconds time, const Turn* turn, bool (*ready)(void*), void* context) {
  constexpr int kLeast = 16, kPolls = 64;  // clock reads, and polls between two of them
  const auto until = Clock::now() + time;
  for (int round = 0; (round < kLeast || Clock::now() < until) && !(turn && turn->wanted()); ++round)
    for (int i = 0; i < kPolls; ++i) {
      if (ready(context)) return true;
      relax();
    }
  return false;
}

}  // namespace

void Peers::wait_slowly(int peer, bool (*ready)(void*), void* context) {
  using std::chrono::microseconds;
  // Yields let a rank on the same core continue at once; naps follow if the wait is for work and not for a
  // message.
  constexpr int kYields = 200;
  constexpr microseconds kShortest{20}, kLongest{500};
  thread_local Yields yields;
  if (deadline_ == Deadline{}) deadline_ = Clock::now() + patience_.deadline;
  microseconds nap = kShortest;
  bool polls = patience_.poll.count() > 0;
  const auto poll = [&] {
    return std::exchange(polls, false) && poll_for(patience_.poll, patience_.turn, ready, context);
  };
  const auto given_up = [&] { return patience_.given_up && patience_.given_up->load(std::memory_order_relaxed); };
  if (!patience_.beside && poll()) return;
  for (int round = 0; !ready(context); ++round) {
    const bool others = patience_.turn && patience_.turn->wanted();
    if (others) patience_.turn->pass();
    if (others && given_up()) throw PeerLost("[comm] given up: this rank leaves", peer);
    if (round < kYields && yields.yield()) continue;
    if (poll()) return;
    if (given_up()) throw PeerLost("[comm] given up: this rank leaves", peer);
    try {
      transport_.check(peer);
    } catch (const PeerLost&) {
      if (ready(context)) return;  // what it did before it left still counts
      throw;
    }
    if (Clock::now() >= deadline_) {
      const auto who =
          peer < 0 ? std::string("its peers") : fmt::format("rank {} on {}", peer, transport_.host_name(peer));
      throw PeerLost(fmt::format("nothing came from {} in {:.3g} s", who,
                                 std::chrono::duration<double>(patience_.deadline).count()),
                     peer);
    }
    transport_.nap(others ? kShortest : nap);  // which keeps the turn
    nap = std::min(nap * 2, kLongest);
  }
}

}  // namespace hpcdl::comm

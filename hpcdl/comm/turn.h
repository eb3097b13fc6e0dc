#pragma once
// Work of one rank that is under way at once: collectives of different groups, messages. One thread at a time has the
// turn, and it alone uses the transport; one that waits for a peer passes the turn to the others between two polls.

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>

namespace hpcdl::comm {

class Turn {
 public:
  void take() {
    if (taken_.exchange(true)) take_later();
  }
  void give() {
    taken_.store(false);
    if (wanted()) give_on();
  }
  /// Whether another thread waits for it.
  bool wanted() const { return waiting_.load() > 0; }
  /// Gives it to the thread that has waited for the longest time, if there is one, and takes it again.
  void pass();

 private:
  struct Waiter {
    std::condition_variable come;
    bool has_turn = false;
  };
  void take_later();
  void give_on();
  void hand_over();
  void wait(std::unique_lock<std::mutex>& lock, Waiter& me);

  std::atomic<bool> taken_ = false;
  std::atomic<int> waiting_ = 0;
  std::mutex mutex_;
  std::deque<Waiter*> waiters_;  // the one that has waited for the longest time first
};

}  // namespace hpcdl::comm

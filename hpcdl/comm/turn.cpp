#include "hpcdl/comm/turn.h"

namespace hpcdl::comm {

void Turn::take_later() {
  std::unique_lock lock(mutex_);
  waiting_.fetch_add(1);  // before the flag is read again: a thread that clears it from now on sees this
  if (Waiter me; taken_.exchange(true)) wait(lock, me);
  waiting_.fetch_sub(1);
}

void Turn::give_on() {
  const std::lock_guard lock(mutex_);
  if (!waiters_.empty() && !taken_.exchange(true)) hand_over();
}

void Turn::pass() {
  std::unique_lock lock(mutex_);
  if (waiters_.empty()) return;
  waiting_.fetch_add(1);
  hand_over();
  Waiter me;
  wait(lock, me);
  waiting_.fetch_sub(1);
}

/// The flag stays set.
void Turn::hand_over() {
  Waiter& next = *waiters_.front();
  waiters_.pop_front();
  next.has_turn = true;
  next.come.notify_one();
}

void Turn::wait(std::unique_lock<std::mutex>& lock, Waiter& me) {
  waiters_.push_back(&me);
  me.come.wait(lock, [&] { return me.has_turn; });
}

}  // namespace hpcdl::comm

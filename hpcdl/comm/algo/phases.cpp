#include "hpcdl/comm/algo/phases.h"

namespace hpcdl::comm::algo {

/// Polls without a pause, which takes as long as a cache line takes from core to core: ranks that arrive together, as
/// they usually do, do not wait.
constexpr int kEagerPolls = 100;

void Phases::meet() {
  const auto epoch = static_cast<std::uint32_t>(++shared_.epoch);
  const std::uint64_t here = std::uint64_t{epoch} << 32 | peers_.tag();
  shared_.flag(index(), kPhase).store(here, std::memory_order_release);
  for (int i = 0; i < size(); ++i) {
    if (i == index()) continue;
    const auto& flag = shared_.flag(i, kPhase);
    const auto came = [&] {
      const std::uint64_t there = flag.load(std::memory_order_acquire);
      // A rank that has continued has seen the tag of this one.
      return there == here || static_cast<std::int32_t>(static_cast<std::uint32_t>(there >> 32) - epoch) > 0;
    };
    bool is_there = false;
    for (int poll = 0; poll < kEagerPolls && !is_there; ++poll) is_there = came();
    if (!is_there) peers_.wait_until(shared_.ranks()[static_cast<std::size_t>(i)], came);
  }
}

void Phases::meet(std::uint64_t tells) {
  word(index(), shared_.epoch + 1).store(tells, std::memory_order_relaxed);
  meet();
}

}  // namespace hpcdl::comm::algo

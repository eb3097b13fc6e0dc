#include "hpcdl/comm/algo/phases.h"

#include <random>

namespace hpcdl::comm::algo {

namespace {

// Cache lines of the flags.
constexpr int kPhase = 0, kCard = 1 /* and 2: by turns */, kOneProcess = 3;

/// What a rank tells of itself, in one cache line.
struct Card {
  std::uint64_t process = 0, address = 0;
};

Card* card(Shared& s, int index, std::uint64_t epoch) { return reinterpret_cast<Card*>(&s.flag(index, kCard + static_cast<int>(epoch % 2))); }

/// Tells this process from all others, whatever namespaces say of their numbers.
std::uint64_t nonce() {
  static const std::uint64_t value = [] {
    std::random_device random;
    return (std::uint64_t{random()} << 32 | random()) | 1;
  }();
  return value;
}

}  // namespace

/// Polls without a pause, which takes as long as a line takes from core to core: ranks that come together, as they mostly do, are not made to wait.
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
      // A rank that has gone on has seen this one's tag.
      return there == here || static_cast<std::int32_t>(static_cast<std::uint32_t>(there >> 32) - epoch) > 0;
    };
    bool is_there = false;
    for (int poll = 0; poll < kEagerPolls && !is_there; ++poll) is_there = came();
    if (!is_there) peers_.wait_until(shared_.ranks()[static_cast<std::size_t>(i)], came);
  }
}

bool one_process(Phases& p, Ground& g) {
  constexpr std::uint64_t kNo = 1, kYes = 2;
  Shared& s = *g.shared;
  auto& known = s.flag(s.index(), kOneProcess);
  if (const auto k = known.load(std::memory_order_relaxed); k != 0) return k == kYes;
  *card(s, s.index(), s.epoch + 1) = {nonce(), 0};
  p.meet();
  bool same = true;
  for (int i = 0; i < p.size(); ++i) same = same && card(s, i, s.epoch)->process == nonce();
  p.meet();
  known.store(same ? kYes : kNo, std::memory_order_relaxed);
  return same;
}

Others::Others(Phases& p, Ground& g, const std::byte* mine) {
  Shared& s = *g.shared;
  *card(s, s.index(), s.epoch + 1) = {0, reinterpret_cast<std::uint64_t>(mine)};
  p.meet();
  for (int i = 0; i < p.size(); ++i) addresses_.push_back(card(s, i, s.epoch)->address);
}

}  // namespace hpcdl::comm::algo

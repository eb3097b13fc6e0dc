#include "hpcdl/comm/algo/phases.h"

#include <cerrno>
#include <random>
#include <sys/uio.h>
#include <unistd.h>

namespace hpcdl::comm::algo {

namespace {

// Cache lines of the flags.
constexpr int kPhase = 0, kCard = 1 /* and 2: by turns */, kReach = 3;

/// What a rank tells of itself, in one cache line.
struct Card {
  std::uint64_t process = 0, nonce = 0, nonce_at = 0, address = 0;
};

Card* card(Shared& s, int index, std::uint64_t epoch) { return reinterpret_cast<Card*>(&s.flag(index, kCard + static_cast<int>(epoch % 2))); }

/// Tells this process from all others, whatever namespaces say of their numbers.
const std::uint64_t& nonce() {
  static const std::uint64_t value = [] {
    std::random_device random;
    return (std::uint64_t{random()} << 32 | random()) | 1;
  }();
  return value;
}

bool copy_from(std::uint64_t process, void* to, std::uint64_t from, std::int64_t n) {
  iovec mine{to, static_cast<std::size_t>(n)}, theirs{reinterpret_cast<void*>(from), static_cast<std::size_t>(n)};
  while (n > 0) {
    const auto done = process_vm_readv(static_cast<pid_t>(process), &mine, 1, &theirs, 1, 0);
    if (done <= 0) return false;
    n -= done;
    mine = {static_cast<std::byte*>(mine.iov_base) + done, static_cast<std::size_t>(n)};
    theirs = {static_cast<std::byte*>(theirs.iov_base) + done, static_cast<std::size_t>(n)};
  }
  return true;
}

Reach try_reach(Phases& p, Shared& s) {
  bool same = true, copies = true;
  for (int i = 0; i < p.size(); ++i) {
    const Card c = *card(s, i, s.epoch);
    same = same && c.nonce == nonce();
    std::uint64_t seen = 0;
    copies = copies && (c.nonce == nonce() || (copy_from(c.process, &seen, c.nonce_at, sizeof seen) && seen == c.nonce));
  }
  return same ? Reach::direct : copies ? Reach::copies : Reach::none;
}

}  // namespace

void Phases::meet() {
  const auto epoch = static_cast<std::uint32_t>(++shared_.epoch);
  const std::uint64_t here = std::uint64_t{epoch} << 32 | peers_.tag();
  shared_.flag(index(), kPhase).store(here, std::memory_order_release);
  for (int i = 0; i < size(); ++i) {
    if (i == index()) continue;
    const auto& flag = shared_.flag(i, kPhase);
    peers_.wait_until(shared_.ranks()[static_cast<std::size_t>(i)], [&] {
      const std::uint64_t there = flag.load(std::memory_order_acquire);
      // A rank that has gone on has seen this one's tag.
      return there == here || static_cast<std::int32_t>(static_cast<std::uint32_t>(there >> 32) - epoch) > 0;
    });
  }
}

Reach reach(Phases& p, Ground& g) {
  Shared& s = *g.shared;
  auto& known = s.flag(s.index(), kReach);
  if (const auto k = known.load(std::memory_order_relaxed); k != 0) return static_cast<Reach>(k);
  *card(s, s.index(), s.epoch + 1) = {static_cast<std::uint64_t>(getpid()), nonce(), reinterpret_cast<std::uint64_t>(&nonce()), 0};
  p.meet();
  const Reach mine = try_reach(p, s);
  card(s, s.index(), s.epoch + 1)->address = static_cast<std::uint64_t>(mine);
  p.meet();
  auto least = static_cast<std::uint64_t>(mine);
  for (int i = 0; i < p.size(); ++i) least = std::min(least, card(s, i, s.epoch)->address);
  known.store(least, std::memory_order_relaxed);
  return static_cast<Reach>(least);
}

Others::Others(Phases& p, Ground& g, const std::byte* mine) : reach_(algo::reach(p, g)) {
  Shared& s = *g.shared;
  *card(s, s.index(), s.epoch + 1) = {static_cast<std::uint64_t>(getpid()), 0, 0, reinterpret_cast<std::uint64_t>(mine)};
  p.meet();
  for (int i = 0; i < p.size(); ++i) {
    addresses_.push_back(card(s, i, s.epoch)->address);
    processes_.push_back(static_cast<int>(card(s, i, s.epoch)->process));
  }
}

void Others::read(int index, std::byte* to, const std::byte* from, std::int64_t n) const {
  if (reach_ == Reach::direct) return copy_bytes(to, from, n);
  if (!copy_from(static_cast<std::uint64_t>(processes_[static_cast<std::size_t>(index)]), to, reinterpret_cast<std::uint64_t>(from), n))
    throw PeerLost(fmt::format("[comm] the memory of process {} cannot be read any more (error {}): it has ended", processes_[static_cast<std::size_t>(index)], errno));
}

}  // namespace hpcdl::comm::algo

#include "hpcdl/comm/algo/reach.h"

#include <sys/uio.h>
#include <unistd.h>

#include <random>

namespace hpcdl::comm::algo {

namespace {

// Cache lines of the flags: what was found, counted from 1; the number of the process.
constexpr int kReach = 1, kProcess = 2;

/// Tells this process from all others, whatever namespaces say of their numbers.
const std::uint64_t& nonce() {
  static const std::uint64_t value = [] {
    std::random_device random;
    return (std::uint64_t{random()} << 32 | random()) | 1;
  }();
  return value;
}

bool all_say(Phases& p, std::uint64_t word) {
  bool same = true;
  for (int i = 0; i < p.size(); ++i) same = same && p.told(i) == word;
  return same;
}

/// Every rank finds the number of every other where that says it is: the system lets it, and it is the same process.
bool read_each_other(Phases& p, Ground& g) {
  g.shared->flag(p.index(), kProcess).store(static_cast<std::uint64_t>(getpid()), std::memory_order_relaxed);
  p.meet(reinterpret_cast<std::uint64_t>(&nonce()));
  std::uint64_t found[kMostTogether] = {};
  bool can = p.size() <= kMostTogether;
  for (int i = 0; i < p.size() && can; ++i)
    can = read_from(g, i, reinterpret_cast<std::byte*>(&found[i]), p.told(i), sizeof found[i]);
  p.meet(nonce());
  for (int i = 0; i < p.size() && can; ++i) can = found[i] == p.told(i);
  p.meet(can);
  return all_say(p, 1);
}

}  // namespace

Reach reach(Phases& p, Ground& g) {
  auto& known = g.shared->flag(p.index(), kReach);
  if (const auto k = known.load(std::memory_order_relaxed); k != 0) return static_cast<Reach>(k - 1);
  p.meet(nonce());
  const Reach found = all_say(p, nonce()) ? Reach::addresses : read_each_other(p, g) ? Reach::reading : Reach::staging;
  known.store(static_cast<std::uint64_t>(found) + 1, std::memory_order_relaxed);
  return found;
}

bool read_from(Ground& g, int index, std::byte* to, std::uint64_t address, std::int64_t n) {
  const auto process = static_cast<pid_t>(g.shared->flag(index, kProcess).load(std::memory_order_relaxed));
  while (n > 0) {
    const iovec here{to, static_cast<std::size_t>(n)},
        there{reinterpret_cast<void*>(address), static_cast<std::size_t>(n)};
    const auto got = process_vm_readv(process, &here, 1, &there, 1, 0);
    if (got <= 0) return false;
    to += got, address += static_cast<std::uint64_t>(got), n -= got;
  }
  return true;
}

void stop_reading(Ground& g) {
  g.shared->flag(g.shared->index(), kReach)
      .store(static_cast<std::uint64_t>(Reach::staging) + 1, std::memory_order_relaxed);
}

}  // namespace hpcdl::comm::algo

#include "hpcdl/comm/algo/reach.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <random>

namespace hpcdl::comm::algo {

namespace {

// Cache lines of the flags: the result, counted from 1; the process id.
constexpr int kReach = 1, kProcess = 2;

/// Identifies this process among all others, even if process ids repeat in several namespaces.
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

/// The sum of the values of all ranks. Collective.
std::int64_t sum_of_all(Phases& p, std::int64_t mine) {
  p.meet(static_cast<std::uint64_t>(mine));
  std::int64_t sum = 0;
  for (int i = 0; i < p.size(); ++i) sum += static_cast<std::int64_t>(p.told(i));
  return sum;
}

template <class F> std::int64_t nanoseconds(F&& f) {
  const auto begin = Clock::now();
  f();
  return std::chrono::nanoseconds(Clock::now() - begin).count();
}

/// Compares one copy by the system with two by the ranks: the first takes half as long on a Xeon, and twice as
/// long on a Zen 5. Each rank measures with its neighbours in turns; the result is the shortest of some trials, summed
/// over ranks.
bool reading_pays(Phases& p, Ground& g) {
  constexpr std::int64_t kBytes = 128 << 10;
  constexpr int kTrials = 8;
  std::byte* const in = g.scratch.bytes(2 * kBytes);
  std::byte* const out = in + kBytes;
  std::memset(in, 0, 2 * kBytes);
  const int next = (p.index() + 1) % p.size();
  p.meet(reinterpret_cast<std::uint64_t>(in));
  const std::uint64_t theirs = p.told(next);
  std::int64_t reading = std::numeric_limits<std::int64_t>::max(), staging = reading;
  for (int trial = 0; trial < kTrials; ++trial) {
    p.meet();
    reading = std::min(reading, nanoseconds([&] {
                         p.meet();
                         read_from(g, next, out, theirs, kBytes);
                         p.meet();
                       }));
    p.meet();
    staging = std::min(staging, nanoseconds([&] {
                         copy_bytes(p.staging(p.index()), in, kBytes);
                         p.meet();
                         copy_bytes(out, p.staged(next), kBytes);
                       }));
  }
  return sum_of_all(p, staging - reading) > 0;
}

}  // namespace

/// Every rank reads the number of every other at the address that it gave: the system allows it, and it is that
/// process.
bool can_read(Phases& p, Ground& g) {
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

bool may_read_sums(Ground& g, Phases& p) {
  const auto known = g.shared->flag(p.index(), kReach, 1).load(std::memory_order_relaxed);
  if (known == 0) may_read_sums(g, reach(p, g) != Reach::addresses && can_read(p, g));
  return g.shared->flag(p.index(), kReach, 1).load(std::memory_order_relaxed) == 2;
}

void may_read_sums(Ground& g, bool may) {
  g.shared->flag(g.shared->index(), kReach, 1).store(may ? 2 : 1, std::memory_order_relaxed);
}

void remember(Ground& g, Reach r) {
  g.shared->flag(g.shared->index(), kReach).store(static_cast<std::uint64_t>(r) + 1, std::memory_order_relaxed);
}

Reach reach(Phases& p, Ground& g) {
  const auto known = g.shared->flag(p.index(), kReach).load(std::memory_order_relaxed);
  if (known != 0) return static_cast<Reach>(known - 1);
  p.meet(nonce());
  const Reach found = all_say(p, nonce())                    ? Reach::addresses
                      : can_read(p, g) && reading_pays(p, g) ? Reach::reading
                                                             : Reach::staging;
  remember(g, found);
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

}  // namespace hpcdl::comm::algo

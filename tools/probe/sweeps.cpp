#include "tools/probe/sweeps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "hpcdl/core/units.h"
#include "hpcdl/simd/isa.h"
#include "tools/words.h"

namespace hpcdl::lab {

namespace {

constexpr std::int64_t kPage = 4096, kStep = 384 * 4;  // bytes; sweep() takes multiples of kStep
constexpr std::int64_t kColour = 33 * 64;  // operands apart within a page: equal offsets alias in the store buffer
constexpr std::int64_t kSlack = 4 * (kPage + kColour);  // per thread
constexpr cpu::Sweep kSweeps[] = {cpu::Sweep::read, cpu::Sweep::copy, cpu::Sweep::copy_streaming, cpu::Sweep::triad,
                                  cpu::Sweep::triad_streaming};

std::int64_t operands(cpu::Sweep s) {
  const bool three = s == cpu::Sweep::triad || s == cpu::Sweep::triad_streaming;
  return three ? 3 : s == cpu::Sweep::copy || s == cpu::Sweep::copy_streaming ? 2 : 1;
}
std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

/// A cycle in random order (Sattolo's algorithm) through every cache line of `bytes`, or through kChain of them, evenly
/// spread: more than a probe ever follows.
Buffer chain(std::int64_t bytes) {
  constexpr std::int64_t kChain = std::int64_t{1} << 20;
  Buffer b(bytes);
  const auto n = static_cast<std::uint32_t>(std::min(bytes / 64, kChain));
  const std::int64_t apart = bytes / 64 / n * 64;
  std::vector<std::uint32_t> next(n);
  for (std::uint32_t i = 0; i < n; ++i) next[i] = i;
  std::mt19937 random(1);
  for (std::uint32_t i = n; i-- > 1;) std::swap(next[i], next[random() % i]);
  for (std::uint32_t i = 0; i < n; ++i) *reinterpret_cast<void**>(b.data() + i * apart) = b.data() + next[i] * apart;
  return b;
}

}  // namespace

std::string_view sweep_name(cpu::Sweep s) {
  switch (s) {
    case cpu::Sweep::read: return "read";
    case cpu::Sweep::copy: return "copy";
    case cpu::Sweep::copy_streaming: return "copy, streaming";
    case cpu::Sweep::triad: return "triad";
    case cpu::Sweep::triad_streaming: return "triad, streaming";
    case cpu::Sweep::read_streams: return "read of streams";
    case cpu::Sweep::copy_streams: return "copy of streams";
    case cpu::Sweep::triad_streams: return "triad of streams";
    case cpu::Sweep::write_streams: return "write, streaming";
    case cpu::Sweep::write_set: return "write";
    case cpu::Sweep::update: return "update";
  }
  return "";
}

SweepMemory::SweepMemory(Pool& pool, std::int64_t bytes)
    : buffer_(round_up(bytes, kPage) + pool.threads() * (kSlack + kPage)),
      moved_(static_cast<std::size_t>(pool.threads()) * 8) {
  // Unwritten memory is one shared page of zeros: reading it would measure the cache.
  auto* x = reinterpret_cast<float*>(buffer_.data());
  const std::int64_t n = buffer_.bytes() / 4, threads = pool.threads();
  pool.run_on_each_thread([&](int t) { std::fill(x + n * t / threads, x + n * (t + 1) / threads, 1.0f); });
}

double SweepMemory::sweep(Pool& pool, cpu::Sweep kind, std::int64_t bytes_per_thread, std::int64_t repeats) {
  const std::int64_t bytes = bytes_per_thread / kStep * kStep;
  return run(pool, kind, round_up(bytes / operands(kind), kPage) + kColour, 0, bytes, repeats);
}

double SweepMemory::walk(Pool& pool, cpu::Sweep kind, std::int64_t bytes_per_thread, std::int64_t windows) {
  constexpr std::int64_t kWindow = 4096 * kStep;
  const std::int64_t bytes = bytes_per_thread / kStep * kStep, count = bytes / kWindow;
  if (count < 2) return sweep(pool, kind, bytes_per_thread, windows);
  double moved = 0;
  for (; windows > 0; --windows, ++window_)
    moved += run(pool, kind, round_up(bytes / operands(kind), kPage) + kColour,
                 window_ % count * (kWindow / operands(kind)), kWindow, 1);
  return moved;
}

/// Operands of a thread lie `part` apart; `offset`: position within each.
double SweepMemory::run(Pool& pool, cpu::Sweep kind, std::int64_t part, std::int64_t offset, std::int64_t bytes,
                        std::int64_t repeats) {
  const std::int64_t stride = buffer_.bytes() / pool.threads() / kPage * kPage;
  simd::with_isa([&](auto isa) {
    pool.run_on_each_thread([&](int t) {
      auto* x = buffer_.data() + t * stride;
      const auto at = [&](int i) { return reinterpret_cast<float*>(x + i * part + offset); };
      moved_[static_cast<std::size_t>(t) * 8] =
          cpu::sweep(isa, kind, at(operands(kind) > 1 ? 1 : 0), at(0), at(2), bytes / 4, repeats);
    });
  });
  double sum = 0;
  for (int t = 0; t < pool.threads(); ++t) sum += moved_[static_cast<std::size_t>(t) * 8];
  return sum;
}

int sharers(const CacheLevel& level, int threads) { return std::clamp(level.cpus, 1, threads); }

std::int64_t bytes_within(const std::vector<CacheLevel>& caches, std::size_t i, int threads) {
  const auto share = [&](std::size_t k) { return caches[k].bytes / sharers(caches[k], threads); };
  const std::int64_t inner = i ? share(i - 1) : 0;
  const std::int64_t bytes = std::min(std::max(share(i) / 4, 2 * inner), share(i) * 3 / 4);
  return std::max(bytes / kStep, std::int64_t{1}) * kStep;
}

std::int64_t bytes_beyond(const Machine& machine, int threads) {
  std::int64_t caches = 0;
  if (!machine.caches.empty()) {
    const auto& last = machine.caches.back();
    caches = last.bytes * ((threads + sharers(last, threads) - 1) / sharers(last, threads));
  }
  const std::int64_t free =
      machine.memory_limit ? std::min(machine.memory_limit, machine.memory_available) : machine.memory_available;
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  const std::int64_t wanted = std::max(std::min(4 * caches, caches + 512 * kMiB), 128 * kMiB);
  return std::max((free > 0 ? std::min(wanted, free / 4) : wanted) / threads / kStep, std::int64_t{1}) * kStep;
}

void list_bandwidth(const Machine& machine, int threads, std::vector<Bandwidth>& bandwidth) {
  const std::int64_t beyond = bytes_beyond(machine, threads);
  for (const auto s : kSweeps) {
    for (std::size_t i = 0; i < machine.caches.size(); ++i)  // a container may have less memory than the host has cache
      bandwidth.push_back({fmt::format("L{}", machine.caches[i].level), s, threads,
                           static_cast<double>(std::min(bytes_within(machine.caches, i, threads), beyond))});
    bandwidth.push_back({"memory", s, threads, static_cast<double>(beyond)});
  }
}

void list_mixes(const Machine& machine, int threads, std::vector<Bandwidth>& mixes) {
  const std::int64_t beyond = bytes_beyond(machine, threads);
  for (const auto s : {cpu::Sweep::read_streams, cpu::Sweep::copy_streams, cpu::Sweep::triad_streams,
                       cpu::Sweep::write_streams, cpu::Sweep::write_set, cpu::Sweep::update})
    mixes.push_back({"memory", s, threads, static_cast<double>(beyond)});
  for (std::size_t i = 0; i < machine.caches.size(); ++i)
    mixes.push_back({fmt::format("L{}", machine.caches[i].level), cpu::Sweep::update, threads,
                     static_cast<double>(std::min(bytes_within(machine.caches, i, threads), beyond))});
}

void list_stairs(const Machine& machine, int threads, int per_octave, double most, std::vector<Bandwidth>& stairs) {
  const double last = std::min(static_cast<double>(bytes_beyond(machine, threads)), most / threads);
  for (const auto s : {cpu::Sweep::read, cpu::Sweep::copy, cpu::Sweep::copy_streaming})
    for (int i = 0;; ++i) {
      const double bytes = std::floor(8 * kStep * std::exp2(static_cast<double>(i) / per_octave) / kStep) * kStep;
      if (bytes > last) break;
      std::string level = "memory";
      for (auto c = machine.caches.rbegin(); c != machine.caches.rend(); ++c)
        if (bytes <= static_cast<double>(c->bytes / sharers(*c, threads))) level = fmt::format("L{}", c->level);
      stairs.push_back({level, s, threads, bytes});
    }
}

void add_sweeps(Rounds& rounds, std::vector<Bandwidth>& list, const std::vector<Pool*>& pools, SweepMemory& memory,
                double seconds, bool walk) {
  for (auto& b : list) {
    const auto pool =
        std::find_if(pools.begin(), pools.end(), [&](const Pool* p) { return p->threads() == b.threads; });
    if (pool == pools.end()) continue;
    const auto bytes = static_cast<std::int64_t>(b.bytes_per_thread);
    const bool beyond = walk && b.level == "memory";
    rounds.add(fmt::format("{} {}, {}, {}", b.level, sweep_name(b.sweep), plural(b.threads, "thread"),
                           format_bytes(b.bytes_per_thread)),
               b.rate,
               Rate(
                   [p = *pool, &memory, kind = b.sweep, bytes, beyond](std::int64_t n) {
                     return beyond ? memory.walk(*p, kind, bytes, n) : memory.sweep(*p, kind, bytes, n);
                   },
                   seconds, b.level == "memory" ? 0 : 1));
  }
}

void add_latency(Rounds& rounds, const Machine& machine, std::vector<LoadLatency>& list, double seconds) {
  for (std::size_t i = 0; i < machine.caches.size(); ++i)
    list.push_back({fmt::format("L{}", machine.caches[i].level),
                    static_cast<double>(std::min(bytes_within(machine.caches, i, 1), bytes_beyond(machine, 1)))});
  list.push_back({"memory", static_cast<double>(bytes_beyond(machine, 1))});
  for (auto& l : list) {
    const auto memory = std::make_shared<Buffer>(chain(static_cast<std::int64_t>(l.bytes)));
    Rate rate(
        [memory, at = static_cast<void*>(memory->data())](std::int64_t n) mutable {
          for (std::int64_t k = 0; k < n * 64; ++k) at = *static_cast<void**>(at);
          __asm__ volatile("" : : "r"(at));
          return static_cast<double>(n * 64);
        },
        seconds,
        l.level == "memory"
            ? 256
            : memory->bytes() / 64 / 64);  // there, the translation of addresses is warm, but the data are not
    rounds.add(l.level + " load", l.seconds, [rate]() mutable { return 1 / rate(); });
  }
}

}  // namespace hpcdl::lab

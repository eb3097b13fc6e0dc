#include "hpcdl/lab/roofline/mixes.h"

#include <algorithm>
#include <vector>

#include "hpcdl/core/clock.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl::lab::roofline {

namespace {

/// The memory that all threads sweep, each in its own part.
struct Parts {
  float* data;
  std::int64_t floats;    // of one thread's part
  std::int64_t next = 0;  // window of the walk
};

constexpr double kRound = 16e6;  // minimum bytes per thread
constexpr int kRounds = 10;

/// Best rate over some rounds on the `mine` floats of each part that begin at offset(round).
template <class Offset>
double best_rate(Pool& pool, const Parts& parts, std::int64_t mine, std::int64_t repeats, cpu::Mix mix, Offset offset) {
  std::vector<double> moved(static_cast<std::size_t>(pool.threads()) * 8);  // a cache line apart
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    float* at = parts.data + offset();
    const auto start = Clock::now();
    pool.run_on_each_thread([&](int t) {
      simd::with_isa([&](auto isa) {
        moved[static_cast<std::size_t>(t) * 8] = cpu::sweep_mix(isa, mix, at + t * parts.floats, mine, repeats);
      });
    });
    const double seconds = seconds_since(start);
    double sum = 0;
    for (std::size_t t = 0; t < moved.size(); t += 8) sum += moved[t];
    best = std::max(best, sum / seconds);
  }
  return best;
}

std::int64_t whole_pages(double bytes) { return static_cast<std::int64_t>(bytes) / 4096 * 1024; }

/// Repeatedly over `bytes` of each part.
double within(Pool& pool, const Parts& parts, double bytes, cpu::Mix mix) {
  const auto mine = whole_pages(bytes);
  return best_rate(pool, parts, mine,
                   std::max<std::int64_t>(1, static_cast<std::int64_t>(kRound / (4 * static_cast<double>(mine)))), mix,
                   [] { return 0; });
}

/// Always advances through the parts, so that no cache holds the next data.
double beyond(Pool& pool, Parts& parts, cpu::Mix mix) {
  const auto mine = std::min(whole_pages(kRound), parts.floats / 1024 * 1024);
  return best_rate(pool, parts, mine, 1, mix, [&] { return parts.next++ % (parts.floats / mine) * mine; });
}

}  // namespace

void add_mixes(Roofs& roofs, Pool& pool, std::span<float> memory) {
  const int threads = pool.threads();
  Parts parts{memory.data(), static_cast<std::int64_t>(memory.size()) / threads / 1024 * 1024};
  using cpu::Mix;
  const auto rate = [&](Mix mix) { return beyond(pool, parts, mix); };
  roofs.memory_write = std::max(rate(Mix::write_past), rate(Mix::write_set));
  roofs.memory_read = std::max(roofs.memory_read, rate(Mix::read));
  roofs.memory_copy = std::max({roofs.memory_copy, rate(Mix::copy_past), rate(Mix::triad_past)});
  roofs.memory_update = rate(Mix::update);
  double inner = 0;
  for (auto& c : roofs.caches) {
    // Stays within this level and exceeds the previous one.
    const double bytes = std::min(std::max(c.bytes / 4, 2 * inner), 0.75 * c.bytes) / threads;
    if (bytes >= 4096 && bytes <= 4.0 * static_cast<double>(parts.floats))
      c.update = within(pool, parts, bytes, Mix::update);
    inner = c.bytes;
  }
}

}  // namespace hpcdl::lab::roofline

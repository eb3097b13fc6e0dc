#include "hpcdl/lab/roofline/mixes.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "hpcdl/core/buffer.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl::lab::roofline {

namespace {

/// Best rate of some rounds; each thread sweeps over `bytes` of its own.
double best_rate(Pool& pool, float* memory, double bytes, cpu::Mix mix) {
  constexpr double kRound = 16e6;  // bytes for each thread, at least
  constexpr int kRounds = 10;
  const auto mine = static_cast<std::int64_t>(bytes) / 4096 * 1024;  // floats, whole pages
  const auto repeats = std::max<std::int64_t>(1, static_cast<std::int64_t>(kRound / (4 * static_cast<double>(mine))));
  std::vector<double> moved(static_cast<std::size_t>(pool.threads()) * 8);  // a cache line apart
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    pool.run([&](int t) {
      simd::with_isa([&](auto isa) { moved[static_cast<std::size_t>(t) * 8] = cpu::sweep_mix(isa, mix, memory + t * mine, mine, repeats); });
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    double sum = 0;
    for (std::size_t t = 0; t < moved.size(); t += 8) sum += moved[t];
    best = std::max(best, sum / seconds);
  }
  return best;
}

}  // namespace

void add_mixes(Roofs& roofs, Pool& pool) {
  const int threads = pool.threads();
  const double beyond = std::max(4 * roofs.cache_bytes, 128e6) / threads;
  const Buffer buffer(static_cast<std::int64_t>(beyond) * threads + 4096);
  auto* memory = reinterpret_cast<float*>(buffer.data());
  const auto rate = [&](double bytes, cpu::Mix mix) { return best_rate(pool, memory, bytes, mix); };
  using cpu::Mix;
  roofs.memory_write = std::max(rate(beyond, Mix::write_past), rate(beyond, Mix::write_set));  // first: they touch the pages
  roofs.memory_read = std::max(roofs.memory_read, rate(beyond, Mix::read));
  roofs.memory_copy = std::max({roofs.memory_copy, rate(beyond, Mix::copy_past), rate(beyond, Mix::triad_past)});
  roofs.memory_update = rate(beyond, Mix::update);
  double inner = 0;
  for (auto& c : roofs.caches) {
    // Stays within this level and outgrows the one before.
    const double bytes = std::min(std::max(c.bytes / 4, 2 * inner), 0.75 * c.bytes) / threads;
    if (bytes >= 4096 && bytes <= beyond) c.update = rate(bytes, Mix::update);
    inner = c.bytes;
  }
}

}  // namespace hpcdl::lab::roofline

#include "hpcdl/lab/verify/light_within.h"

#include <algorithm>

#include "hpcdl/core/pool.h"
#include "hpcdl/lab/probe/peaks.h"
#include "hpcdl/lab/probe/sweeps.h"

namespace hpcdl::lab::verify {

Roofs light_within(double bytes) {
  constexpr double kSample = 0.3e-3;
  constexpr int kRounds = 4;
  constexpr double kLeast = 16384;  // of a sweep, each thread
  Pool all, one(1);
  const int threads = all.threads();
  const double each = std::max(bytes / threads, kLeast);
  SweepMemory memory(all, static_cast<std::int64_t>(each) * threads);
  std::vector<Bandwidth> ways;
  std::vector<Peak> peaks;
  for (const int n : {1, threads}) {
    for (const auto way : {cpu::Sweep::read, cpu::Sweep::copy}) ways.push_back({"working set", way, n, each});
    list_peaks(simd::active_isa(), {"f32", "bf16", "i8"}, n, peaks);
    if (threads == 1) break;
  }
  Rounds rounds;
  add_sweeps(rounds, ways, {&one, &all}, memory, kSample, false);
  add_peaks(rounds, peaks, {&one, &all}, kSample);
  rounds.run(kRounds, kRounds, 0);

  Roofs r;
  const auto raise = [&](double& roof, const Figure& f, int n) { roof = std::max(roof, f.max * threads / n); };
  for (const auto& w : ways) raise(r.cache_read, w.rate, w.threads);
  for (const auto& p : peaks) raise(p.dtype == "f32" ? r.f32 : p.dtype == "bf16" ? r.bf16 : r.i8, p.rate, p.threads);
  return with_parts(r, simd::isa_name(simd::active_isa()));
}

}  // namespace hpcdl::lab::verify

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <memory>

#include "hpcdl/core/clock.h"
#include "hpcdl/device.h"
#include "hpcdl/simd/isa.h"
#include "tools/probe/bound.h"
#include "tools/probe/parts.h"
#include "tools/probe/sweeps.h"

namespace hpcdl::lab {

namespace {

struct Effort {
  int least, most;  // rounds
  double seconds;   // of all rounds
  double sample;    // seconds
  int stairs_per_octave;
  double stairs_bytes;  // the largest step; a step is always swept as a whole
  std::int64_t disk_bytes;
  double disk_seconds;
};
constexpr Effort kFull{7, 25, 20, 1.5e-3, 4, 2e9, std::int64_t{256} << 20, 3};
constexpr Effort kQuick{3, 3, 2, 0.4e-3, 2, 256e6, std::int64_t{32} << 20, 0.3};

std::vector<int> all_threads() {
  const int n = usable_cpus();
  std::vector<int> list;
  for (int t = 1; t < n; t = n <= 8 ? t + 1 : 2 * t) list.push_back(t);
  list.push_back(n);
  return list;
}

void probe_cpu(Probe& p, const ProbeOptions& options, const OnProgress& progress) {
  const Effort effort = options.quick ? kQuick : kFull;
  if (progress) progress("memory is prepared", 0);
  std::vector<std::unique_ptr<Pool>> owned;
  std::vector<Pool*> pools;
  std::int64_t bytes = 0;
  for (const int t : options.threads.empty() ? all_threads() : options.threads) {
    pools.push_back(owned.emplace_back(std::make_unique<Pool>(t)).get());
    bytes = std::max(bytes, t * bytes_beyond(p.machine, t));
    list_bandwidth(p.machine, t, p.bandwidth);
    list_mixes(p.machine, t, p.mixes);
    for (const auto isa : simd::kIsaKinds)
      if (isa <= simd::best_isa()) list_peaks(isa, {"f32", "bf16", "i8", "f64"}, t, p.peaks);
  }
  for (const Pool* pool : {pools.front(), pools.back()})
    if (p.stairs.empty() || pool != pools.front())
      list_stairs(p.machine, pool->threads(), effort.stairs_per_octave, effort.stairs_bytes, p.stairs);
  Pool one(1);

  const double disk_share = options.disk.empty() ? 0 : effort.disk_seconds / (effort.disk_seconds + effort.seconds);
  Rounds rounds;
  add_core_to_core(rounds, p.core_to_core);
  const BoundPools bound(pools);
  add_latency(rounds, p.machine, p.latency,
              effort.sample);  // first, because the others evict its chains from the caches
  SweepMemory memory(*pools.back(), bytes);
  add_sweeps(rounds, p.bandwidth, pools, memory, effort.sample, true);
  add_sweeps(rounds, p.mixes, pools, memory, effort.sample, true);
  add_sweeps(rounds, p.stairs, pools, memory, effort.sample / 2, false);
  add_peaks(rounds, p.peaks, pools, effort.sample);
  add_launch(rounds, p.launch, pools, effort.sample);
  add_replay(rounds, one, p.replay_empty, p.replay_small, effort.sample);
  add_first_touch(rounds, p.first_touch, pools);
  rounds.run(effort.least, effort.most, effort.seconds, [&](std::string_view what, double done) {
    if (progress) progress(what, done * (1 - disk_share));
  });
  for (const Pool* pool : pools) p.roofs.push_back({pool->threads(), roofs_of(p, p.isa, pool->threads())});
  if (!options.disk.empty())
    p.disk = probe_disk(options.disk, effort.disk_bytes, effort.disk_seconds, [&](std::string_view what, double done) {
      if (progress) progress(what, 1 - disk_share * (1 - done));
    });
}

}  // namespace

Probe run_probe(const ProbeOptions& options, const OnProgress& progress) {
  const auto start = Clock::now();
  Probe p;
  p.machine = this_machine();
  p.date = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))), p.version = options.version,
  p.isa = p.machine.isa, p.quick = options.quick;
  const double cpu_share = options.cpu ? options.gpus && cuda_devices() > 0 ? 0.8 : 1 : 0;
  if (options.cpu)
    probe_cpu(p, options, [&](std::string_view what, double done) {
      if (progress) progress(what, cpu_share * done);
    });
  if (options.gpus)
    probe_gpus(p, options.quick, [&](std::string_view what, double done) {
      if (progress) progress(what, cpu_share + (1 - cpu_share) * done);
    });
  p.seconds = seconds_since(start);
  return p;
}

Roofs roofs_of(const Probe& probe, const std::string& isa, int threads) {
  Roofs r;
  r.launch = probe.replay_empty.min;
  for (const auto& p : probe.peaks) {
    if (p.isa != isa || p.threads != threads) continue;
    if (p.dtype == "f32") r.f32 = p.rate.max;
    if (p.dtype == "bf16") r.bf16 = p.rate.max;
    if (p.dtype == "i8") r.i8 = p.rate.max;
  }
  for (const auto& c : probe.machine.caches) {
    const int shared = sharers(c, threads);
    r.caches.push_back({fmt::format("L{}", c.level), static_cast<double>(c.bytes * ((threads + shared - 1) / shared))});
  }
  for (const auto& b : probe.bandwidth) {
    if (b.threads != threads) continue;
    const bool read = b.sweep == cpu::Sweep::read,
               copy = b.sweep == cpu::Sweep::copy || b.sweep == cpu::Sweep::copy_streaming;
    if (b.level == "memory" && read) r.memory_read = std::max(r.memory_read, b.rate.max);
    if (b.level == "memory" && copy) r.memory_copy = std::max(r.memory_copy, b.rate.max);
    for (auto& c : r.caches) {
      if (b.level == c.name && read) c.read = b.rate.max;
      if (b.level == c.name && copy) c.copy = std::max(c.copy, b.rate.max);
    }
  }
  for (const auto& b : probe.mixes) {
    if (b.threads != threads) continue;
    double* roof = &r.memory_update;
    if (b.sweep == cpu::Sweep::read_streams) roof = &r.memory_read;
    if (b.sweep == cpu::Sweep::copy_streams || b.sweep == cpu::Sweep::triad_streams) roof = &r.memory_copy;
    if (b.sweep == cpu::Sweep::write_streams || b.sweep == cpu::Sweep::write_set) roof = &r.memory_write;
    for (auto& c : r.caches)
      if (b.level == c.name) roof = &c.update;
    *roof = std::max(*roof, b.rate.max);
  }
  r.cache_bytes = r.caches.empty() ? 32.0 * (1 << 20) : r.caches.back().bytes;
  r.cache_read = r.caches.empty() ? r.memory_read : r.caches.back().read;
  return with_parts(r, isa);
}

}  // namespace hpcdl::lab

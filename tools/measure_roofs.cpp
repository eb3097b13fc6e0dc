#include "tools/measure_roofs.h"

#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/machine/remembered.h"
#include "hpcdl/simd/isa.h"
#include "tools/probe/bound.h"
#include "tools/probe/parts.h"
#include "tools/probe/sweeps.h"

namespace hpcdl::lab {

namespace {

void keep(const nlohmann::ordered_json& file) try { write_remembered(file); } catch (const Error&) {
  // a read-only home: the next run measures again
}

Roofs with_networks(Roofs r, const nlohmann::ordered_json& file, std::string_view device) {
  r.networks = find_networks(file, device);
  return r;
}

}  // namespace

Roofs measure_roofs(Pool& pool) {
  Probe p;
  p.machine = this_machine();
  const int threads = pool.threads();
  std::vector<Bandwidth> all;
  list_bandwidth(p.machine, threads, all);
  for (auto& b : all)
    if (b.sweep == cpu::Sweep::read || b.sweep == cpu::Sweep::copy ||
        (b.sweep == cpu::Sweep::copy_streaming && b.level == "memory"))
      p.bandwidth.push_back(std::move(b));
  list_mixes(p.machine, threads, p.mixes);
  list_peaks(simd::active_isa(), {"f32", "bf16", "i8"}, threads, p.peaks);
  const BoundPools bound({&pool});
  SweepMemory memory(pool, threads * bytes_beyond(p.machine, threads));
  Rounds rounds;
  constexpr double kSample = 1e-3;
  add_sweeps(rounds, p.bandwidth, {&pool}, memory, kSample, true);
  add_sweeps(rounds, p.mixes, {&pool}, memory, kSample, true);
  add_peaks(rounds, p.peaks, {&pool}, kSample);
  Pool one(1);
  add_replay(rounds, one, p.replay_empty, p.replay_small, kSample);
  rounds.run(8, 8, 0);
  return roofs_of(p, p.machine.isa, threads);
}

Roofs roofs(Pool& pool, Remember remember) {
  // More threads than CPUs do not reach more, and would be assumed to have as many caches as there are threads.
  if (const int cpus = this_machine().cpus_allowed; pool.threads() > cpus) {
    Pool fewer(cpus);
    return roofs(fewer, remember);
  }
  const std::string isa(simd::isa_name(simd::active_isa()));
  auto file = read_remembered();
  const auto known = find_roofs(file, isa, pool.threads());
  if (known && remember == Remember::measured) return with_networks(*known, file, "cpu");
  Roofs now = measure_roofs(pool);
  if (known) now = best_of(now, *known);
  put_roofs(file, isa, pool.threads(), now);
  keep(file);
  return with_networks(now, file, "cpu");
}

Roofs roofs(Device device, Pool& pool, Remember remember) {
  if (!device.is_cuda()) return roofs(pool, remember);
  auto file = read_remembered();
  const auto known = find_gpu_roofs(file, describe_gpu(device.index));
  if (known && remember == Remember::measured) return with_networks(*known, file, "cuda");
  Probe p;
  probe_gpus(p, true, {});
  for (const auto& g : p.gpus) {
    const auto before = find_gpu_roofs(file, g);
    put_gpu_roofs(file, g, before ? best_of(*before, roofs_of(g)) : roofs_of(g));
  }
  keep(file);
  return with_networks(*find_gpu_roofs(file, p.gpus[static_cast<std::size_t>(device.index)]), file, "cuda");
}

}  // namespace hpcdl::lab

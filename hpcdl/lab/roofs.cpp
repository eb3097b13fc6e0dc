#include "hpcdl/lab/roofs.h"

#include "hpcdl/core/error.h"
#include "hpcdl/lab/probe/bound.h"
#include "hpcdl/lab/probe/peaks.h"
#include "hpcdl/lab/probe/sweeps.h"
#include "hpcdl/lab/remembered.h"

namespace hpcdl::lab {

Roofs measure_roofs(Pool& pool) {
  Probe p;
  p.machine = this_machine();
  const int threads = pool.threads();
  std::vector<Bandwidth> all;
  list_bandwidth(p.machine, threads, all);
  for (auto& b : all)
    if (b.sweep == cpu::Sweep::read || b.sweep == cpu::Sweep::copy || (b.sweep == cpu::Sweep::copy_streaming && b.level == "memory"))
      p.bandwidth.push_back(std::move(b));
  list_peaks(simd::active_isa(), {"f32", "bf16", "i8"}, threads, p.peaks);
  const Bound bound({&pool});
  SweepMemory memory(pool, threads * bytes_beyond(p.machine, threads));
  Rounds rounds;
  constexpr double kSample = 1e-3;
  add_sweeps(rounds, p.bandwidth, {&pool}, memory, kSample);
  add_peaks(rounds, p.peaks, {&pool}, kSample);
  rounds.run(8, 8, 0);
  return roofs_of(p, p.machine.isa, threads);
}

Roofs roofs(Pool& pool, Remember remember) {
  const std::string isa(simd::isa_name(simd::active_isa()));
  auto file = read_remembered();
  const auto known = find_roofs(file, isa, pool.threads());
  if (known && remember == Remember::measured) return *known;
  Roofs now = measure_roofs(pool);
  if (known) now = best_of(now, *known);
  put_roofs(file, isa, pool.threads(), now);
  try {
    write_remembered(file);
  } catch (const Error&) {
    // a read-only home: the next run measures again
  }
  return now;
}

double speed_of_light(const Program& program, const Record& record, const Roofs& roofs) {
  double peak = roofs.f32;
  for (std::uint32_t i = 0; i < record.operand_count; ++i) {
    const auto d = program.operands[record.operands + i].spec.dtype;
    if (d == DType::bf16) peak = std::max(peak, roofs.bf16);
    else if (d == DType::u8 || d == DType::i8) peak = std::max(peak, roofs.i8);
  }
  const double bandwidth = record.cost.bytes <= roofs.cache_bytes ? std::max(roofs.cache_read, roofs.memory()) : roofs.memory();
  return std::max(record.cost.flops / peak, record.cost.bytes / bandwidth);
}

double speed_of_light(const Program& program, const Roofs& roofs) {
  double sum = 0;
  for (const auto& r : program.records) sum += speed_of_light(program, r, roofs);
  return sum;
}

}  // namespace hpcdl::lab

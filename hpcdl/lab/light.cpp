#include "hpcdl/lab/light.h"

#include <algorithm>
#include <map>

namespace hpcdl::lab {

namespace {

struct Rates {
  double read, half, write, update;  // bytes per second; 0: not known, that of its neighbour counts
};

double mixed_rate(const Work& w, Rates r) {
  if (r.half <= 0) r.half = r.read;
  if (r.write <= 0) r.write = r.half;
  r.update = std::max(r.update, r.half);
  const double in_place = std::min(2 * w.updates, w.bytes), rest = w.bytes - in_place;
  double seconds = in_place / r.update;
  if (rest > 0) {
    const double t = 2 * std::clamp((w.writes - in_place / 2) / rest, 0.0, 1.0);
    seconds += rest * (t <= 1 ? (1 - t) / r.read + t / r.half : (2 - t) / r.half + (t - 1) / r.write);
  }
  return w.bytes / seconds;
}

struct Level {
  std::string name;
  double bytes, rate;
};

/// Innermost first; none slower than one that lies further out.
std::vector<Level> levels(const Work& w, const Roofs& r) {
  std::vector<Level> list;
  for (const auto& c : r.caches) list.push_back({c.name, c.bytes, cache_rate(w, c)});
  if (list.empty()) list.push_back({"cache", r.cache_bytes, r.cache_read});
  double slowest = memory_rate(w, r);
  for (auto it = list.rbegin(); it != list.rend(); ++it) slowest = it->rate = std::max(it->rate, slowest);
  return list;
}

}  // namespace

double memory_rate(const Work& w, const Roofs& r) {
  return mixed_rate(w, {r.memory_read, r.memory_copy, r.memory_write, r.memory_update});
}
double cache_rate(const Work& w, const CacheRoof& c) { return mixed_rate(w, {c.read, c.copy, 0, c.update}); }

Work work_of(const Program& program, const Record& record) {
  Work w{.flops = record.cost.flops, .dtype = DType::f32, .bytes = record.cost.bytes};
  for (std::uint32_t i = 0; i < record.operand_count; ++i) {
    const auto& o = program.operands[record.operands + i];
    if (o.slot < 0) continue;
    if (program.slots[static_cast<std::size_t>(o.slot)].role == SlotRole::scratch)
      continue;  // its bytes are no operands of arithmetic, whatever they are declared as
    const auto d = o.spec.dtype;
    if (d == DType::u8 || d == DType::i8) w.dtype = DType::i8;
    else if ((d == DType::bf16 || d == DType::f16) && w.dtype == DType::f32) w.dtype = d;
    if (o.access != Access::read) w.writes += static_cast<double>(o.spec.bytes());
    if (o.access == Access::update) w.updates += static_cast<double>(o.spec.bytes());
  }
  w.writes = std::min(w.writes, w.bytes);
  w.updates = std::min(w.updates, w.bytes / 2);
  return w;
}

double traffic_seconds(const Work& work, const Roofs& roofs, std::string* level) {
  if (level) *level = "memory";
  if (work.bytes <= 0) return 0;
  const double footprint = work.footprint(), passes = work.bytes / footprint;
  const auto caches = levels(work, roofs);
  const double memory = memory_rate(work, roofs);
  if (footprint >= 4 * caches.back().bytes) return work.bytes / memory;
  double seconds = 0, inner = 0;
  for (const auto& c : caches) {
    if (c.bytes <= inner) continue;
    seconds += passes * (std::min(footprint, c.bytes) - inner) / c.rate;
    inner = c.bytes;
    if (footprint > c.bytes) continue;
    if (level) *level = c.name;
    return seconds;
  }
  return seconds + passes * (footprint - inner) / memory;
}

double peak(DType dtype, const Roofs& roofs) {
  if (dtype == DType::i8 || dtype == DType::u8) return std::max({roofs.i8, roofs.bf16, roofs.f32});
  return dtype_bytes(dtype) == 2 ? std::max(roofs.bf16, roofs.f32) : roofs.f32;
}

LightTime light(const Work& work, const Roofs& roofs) {
  LightTime l;
  l.arithmetic = work.flops / peak(work.dtype, roofs);
  l.traffic = traffic_seconds(work, roofs, &l.bound);
  l.seconds = std::max(l.arithmetic, l.traffic);
  if (l.by_arithmetic())
    l.bound = work.dtype == DType::u8 || work.dtype == DType::i8 ? "i8"
              : work.dtype == DType::bf16                        ? "bf16"
              : work.dtype == DType::f16                         ? "f16"
                                                                 : "f32";
  return l;
}

LightTime light(const Program& program, const Record& record, const Roofs& roofs) {
  return light(work_of(program, record), roofs);
}

LightTime light(const Program& program, const Roofs& roofs) {
  std::vector<LightTime> lights;
  for (const auto& r : program.records) lights.push_back(light(program, r, roofs));
  return sum(lights);
}

LightTime sum(std::span<const LightTime> lights) {
  LightTime all;
  std::map<std::string, double> by_bound;
  for (const auto& l : lights) {
    all.seconds += l.seconds, all.arithmetic += l.arithmetic, all.traffic += l.traffic;
    by_bound[l.bound] += l.seconds;
  }
  double most = -1;
  for (const auto& [bound, seconds] : by_bound)
    if (seconds > most) most = seconds, all.bound = bound;
  return all;
}

}  // namespace hpcdl::lab

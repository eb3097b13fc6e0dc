#include "hpcdl/machine/speed_of_light.h"

#include <algorithm>
#include <map>

namespace hpcdl::lab {

namespace {

struct Rates {
  double read, half, write, update;  // bytes per second; 0: unknown, then the neighbour's rate is used
};

double mixed_rate(const Cost& c, Rates r) {
  if (r.half <= 0) r.half = r.read;
  if (r.write <= 0) r.write = r.half;
  r.update = std::max(r.update, r.half);
  double seconds = 2 * c.updates / r.update;
  if (const double rest = c.reads + c.writes; rest > 0) {
    const double t = 2 * c.writes / rest;
    seconds += rest * (t <= 1 ? (1 - t) / r.read + t / r.half : (2 - t) / r.half + (t - 1) / r.write);
  }
  return c.bytes() / seconds;
}

struct Level {
  std::string name;
  double bytes, rate;
};

/// Innermost first; no level is slower than an outer one.
std::vector<Level> levels(const Cost& cost, const Roofs& r) {
  std::vector<Level> list;
  for (const auto& c : r.caches) list.push_back({c.name, c.bytes, cache_rate(cost, c)});
  if (list.empty()) list.push_back({"cache", r.cache_bytes, r.cache_read});
  double slowest = memory_rate(cost, r);
  for (auto it = list.rbegin(); it != list.rend(); ++it) slowest = it->rate = std::max(it->rate, slowest);
  return list;
}

}  // namespace

double memory_rate(const Cost& c, const Roofs& r) {
  return mixed_rate(c, {r.memory_read, r.memory_copy, r.memory_write, r.memory_update});
}
double cache_rate(const Cost& cost, const CacheRoof& c) { return mixed_rate(cost, {c.read, c.copy, 0, c.update}); }

double traffic_seconds(const Cost& cost, const Roofs& roofs, std::string* level) {
  if (level) *level = "memory";
  if (cost.bytes() <= 0) return 0;
  const double footprint = cost.footprint(), passes = cost.bytes() / footprint;
  const auto caches = levels(cost, roofs);
  const double memory = memory_rate(cost, roofs);
  if (footprint >= 4 * caches.back().bytes) return cost.bytes() / memory;
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

double peak(Unit unit, const Roofs& roofs) {
  const double half = std::max(roofs.bf16, roofs.f32);
  switch (unit) {
    case Unit::i8: return std::max(roofs.i8, half);
    case Unit::bf16:
    case Unit::f16: return half;
    case Unit::tf32: return roofs.tf32 > 0 ? roofs.tf32 : half;
    case Unit::none:
    case Unit::f32: break;
  }
  return roofs.f32;
}

LightTime light(const Cost& cost, const Roofs& roofs, std::span<const Exchange> exchanges) {
  LightTime l;
  if (cost.operations > 0) l.arithmetic = cost.operations / peak(cost.unit, roofs);
  l.traffic = traffic_seconds(cost, roofs, &l.bound);
  for (const auto& e : exchanges) {
    if (e.ranks < 2) continue;
    const auto* network = network_of(roofs, e.ranks);
    if (network) l.network += network->latency + e.wire_bytes() / network->bandwidth;
    else l.network_known = false;
  }
  l.launch = roofs.launch;
  l.seconds = std::max({l.arithmetic, l.traffic, l.network, l.launch});
  if (l.by_arithmetic()) l.bound = unit_name(cost.unit);
  else if (l.network > std::max(l.traffic, l.launch)) l.bound = "network";
  else if (l.launch > l.traffic) l.bound = "launch";
  return l;
}

LightTime light(const Program& program, const Record& record, const Roofs& roofs) {
  return light(record.cost, roofs, exchanges(program, record));
}

LightTime light(const Program& program, const Roofs& roofs) {
  std::vector<LightTime> computing, reducing;
  for (const auto& r : program.records)
    (r.lane == Lane::reduce ? reducing : computing).push_back(light(program, r, roofs));
  const auto a = sum(computing), b = sum(reducing);
  auto l = a.seconds >= b.seconds ? a : b;
  l.network_known = a.network_known && b.network_known;
  return l;
}

LightTime sum(std::span<const LightTime> lights) {
  LightTime all;
  std::map<std::string, double> by_bound;
  for (const auto& l : lights) {
    all.seconds += l.seconds, all.arithmetic += l.arithmetic, all.traffic += l.traffic;
    all.network += l.network, all.launch += l.launch;
    all.network_known &= l.network_known;
    by_bound[l.bound] += l.seconds;
  }
  double most = -1;
  for (const auto& [bound, seconds] : by_bound)
    if (seconds > most) most = seconds, all.bound = bound;
  return all;
}

}  // namespace hpcdl::lab

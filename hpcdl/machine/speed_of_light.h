#pragma once
// The speed of light of a record: the shortest time in which this machine can do its arithmetic, move its bytes and
// exchange with other ranks, and at least the time that any record takes.

#include <span>
#include <string>

#include "hpcdl/machine/roofs.h"
#include "hpcdl/program.h"
#include "hpcdl/program/axis.h"

namespace hpcdl::lab {

struct LightTime {
  double seconds = 0;                                           // the largest of the next four
  double arithmetic = 0, traffic = 0, network = 0, launch = 0;  // seconds
  std::string bound;          // bound by: "f32", "bf16", "i8"; "L1" .. "L3", "memory"; "network", "launch"
  bool network_known = true;  // false: it exchanges between ranks whose network was not measured, so `network` lacks it
  bool by_arithmetic() const { return arithmetic > std::max({traffic, network, launch}); }
};

/// Operations per second of a unit.
double peak(Unit unit, const Roofs& roofs);
/// Bytes per second to and from memory, or a cache, for reads and writes in the proportion of `cost`: the time per byte
/// is interpolated between the measured mixes (all read, half and half, all written, updated in place).
double memory_rate(const Cost& cost, const Roofs& roofs);
double cache_rate(const Cost& cost, const CacheRoof& cache);

/// Seconds to move the bytes once. Each cache can hold at most its size of the touched memory, which moves at its
/// speed; the rest comes from memory. Beyond four times the last level everything is charged to memory, since a pass
/// over that much leaves nothing in the cache for the next pass. `level`: the outermost level that is needed.
double traffic_seconds(const Cost& cost, const Roofs& roofs, std::string* level = nullptr);

/// `exchanges`: what the record waits for, one after the other; each takes the latency of its ranks plus its bytes at
/// their bandwidth.
LightTime light(const Cost& cost, const Roofs& roofs, std::span<const Exchange> exchanges = {});
LightTime light(const Program& program, const Record& record, const Roofs& roofs);
/// The longer of two sums: all records that compute, and all reductions of gradients, which run at the same time.
LightTime light(const Program& program, const Roofs& roofs);
/// The sum of several in sequence; `bound` is what bounds the largest part of it.
LightTime sum(std::span<const LightTime> lights);

}  // namespace hpcdl::lab

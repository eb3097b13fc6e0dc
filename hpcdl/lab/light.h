#pragma once
// The speed of light of a record: the least time in which this machine can do its arithmetic and move its bytes.

#include <span>
#include <string>

#include "hpcdl/lab/roofs.h"
#include "hpcdl/program/program.h"

namespace hpcdl::lab {

/// What a record asks of the machine.
struct Work {
  double flops = 0;
  DType dtype = DType::f32;  // of the operand with the fastest arithmetic: i8 (and u8), bf16, f32
  double bytes = 0;          // reads and writes
  double writes = 0;         // of these, written
  double updates = 0;        // of the writes, those to a place that is read as well

  double footprint() const { return bytes - updates; }
};

Work work_of(const Program& program, const Record& record);

struct LightTime {
  double seconds = 0;                  // the larger of the next two
  double arithmetic = 0, traffic = 0;  // seconds
  std::string bound;                   // what takes that long: "f32", "bf16", "i8"; "L1" .. "L3", "memory"
  bool by_arithmetic() const { return arithmetic > traffic; }
};

/// Operations per second of such operands.
double peak(DType dtype, const Roofs& roofs);
/// Bytes per second to and from memory, or a cache, for reads and writes in the proportion of `work`: between the
/// measured mixes (all read, half and half, all written, updated in place) the time for a byte is interpolated.
double memory_rate(const Work& work, const Roofs& roofs);
double cache_rate(const Work& work, const CacheRoof& cache);

/// Seconds to move the bytes once. Of what they touch, each cache can hold at most its size, and that comes at its
/// speed; the rest comes from memory. Beyond four times the last level all of it is charged to memory, since a pass
/// over that much leaves nothing behind that the next pass would meet. `level`: the outermost one that is needed.
double traffic_seconds(const Work& work, const Roofs& roofs, std::string* level = nullptr);

LightTime light(const Work& work, const Roofs& roofs);
LightTime light(const Program& program, const Record& record, const Roofs& roofs);
/// All records, one after the other.
LightTime light(const Program& program, const Roofs& roofs);
/// Of several after each other; `bound` is what bounds those that take most of it.
LightTime sum(std::span<const LightTime> lights);

}  // namespace hpcdl::lab

#pragma once
// The memory planner: a fixed position in one arena for every slot, known before anything runs.

#include "hpcdl/program/program.h"

namespace hpcdl {

struct Lifetime {
  int first = -1, last = -1;  // records, inclusive; -1: never touched
};

struct Plan {
  static constexpr std::int64_t kAlign = 64;

  std::vector<std::int64_t> offset;  // per slot, bytes from the arena's start; -1: not in the arena
  std::vector<Lifetime> lifetime;    // per slot
  std::int64_t arena_bytes = 0;      // = peak: the arena is not larger than what some record needs
  std::int64_t live_bytes = 0;       // sum of live slots at the worst record: no plan can be smaller
  int worst_record = -1;
};

/// Bytes a slot takes in the arena.
std::int64_t arena_size(const Slot& slot);

/// Two orders of placement are tried (by time with best fit, by size with first fit) and the smaller arena is kept.
Plan plan(const Program& program);

}  // namespace hpcdl

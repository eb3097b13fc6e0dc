#pragma once
// For programs whose records are on several lanes: which record has to wait for which.

#include <array>
#include <span>
#include <vector>

#include "hpcdl/program/program.h"

namespace hpcdl {

/// Dependencies that lanes do not already ensure. Memory decides, not slots: the planner reuses bytes as soon as the
/// last record that touches them has passed in program order, and a record on another lane may still be working then.
struct LaneDependencies {
  /// Per record: records of other lanes that must be done, at most one of each lane. They imply the earlier ones.
  std::vector<std::vector<int>> waits;
  std::vector<char> signals;  // per record: another record, or the end of the run, waits for it
  /// Per lane but `compute`: its last record, for which the end of the run waits; -1: none.
  std::array<int, kLanes> last{-1, -1, -1};
  bool one_lane = true;  // all records are on `compute`
};

/// lanes: of each record. operands: resolved, all records' in order. `one_chain`: records that exchange with other
/// ranks wait for each other on all lanes. On a GPU, collectives of two groups that run at the same time can deadlock
/// (NCCL's manual, "Using multiple NCCL communicators concurrently").
LaneDependencies lane_dependencies(const Program& program, std::span<const Lane> lanes, std::span<const Grad> operands,
                                   bool one_chain);

}  // namespace hpcdl

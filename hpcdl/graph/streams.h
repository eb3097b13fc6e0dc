#pragma once
// For programs whose records are on several streams of one GPU: which record has to wait for which.

#include <span>
#include <vector>

#include "hpcdl/program/program.h"

namespace hpcdl {

/// Dependencies that streams do not already ensure. Determined by memory, not by slots: the planner reuses bytes as
/// soon as the last record that touches them has passed in program order, and a record on another stream may still be
/// working then.
struct StreamDependencies {
  int streams = 1;
  std::vector<std::vector<int>>
      waits;                  // per record: records of other streams that must be done, at most one of each stream
  std::vector<char> signals;  // per record: another record waits for it
  std::vector<int> last;      // per stream except the first: its last record, for which the end of the run waits
};

/// operands: resolved, all records' in order.
StreamDependencies stream_dependencies(const Program& program, std::span<const Grad> operands);

}  // namespace hpcdl

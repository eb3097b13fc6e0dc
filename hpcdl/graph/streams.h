#pragma once
// Programs whose records lie on several streams of one GPU: which record has to wait for which.

#include <span>
#include <vector>

#include "hpcdl/program/program.h"

namespace hpcdl {

/// Order that streams do not give by themselves. Memory decides, not slots: the planner reuses bytes as soon as the
/// last record that touches them has been passed in program order, and a record on another stream may still be at work
/// then.
struct StreamDependencies {
  int streams = 1;
  std::vector<std::vector<int>>
      waits;                  // per record: records of other streams that must be done, at most one of each stream
  std::vector<char> signals;  // per record: somebody waits for it
  std::vector<int> last;      // per stream but the first: its last record, which the end of the run waits for
};

/// operands: resolved, all records' in order.
StreamDependencies stream_dependencies(const Program& program, std::span<const Grad> operands);

}  // namespace hpcdl

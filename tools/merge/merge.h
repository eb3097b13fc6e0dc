#pragma once
// Merges the traces of all ranks into one file, on one clock.

#include <string>
#include <vector>

#include "tools/merge/critical_path.h"

namespace hpcdl::lab {

struct Merged {
  std::string json;  // the trace: pid is the rank; arrows lead from the rank that came last to those that waited
  std::vector<Alignment> clocks;
  std::vector<Meeting> meetings;
  CriticalPath path;
};

/// Throws Error if two traces are of one rank, or have different numbers of ranks.
Merged merge(std::vector<RankTrace> traces);
/// Clocks, critical path, stragglers.
std::string merged_text(const Merged& merged);
nlohmann::ordered_json merged_json(const Merged& merged);

}  // namespace hpcdl::lab

#pragma once
// Which rank made the others wait: collectives matched across ranks, and the longest chain through them.

#include <string>
#include <vector>

#include "tools/merge/align.h"

namespace hpcdl::lab {

/// A collective of at least two of the ranks. Ranks are indices into the traces. Microseconds, aligned.
struct Meeting {
  struct Part {
    std::size_t trace, work;
    double begin, end;
  };
  std::string name;  // "all_reduce#12"
  std::vector<Part> parts;
  std::size_t late = 0;  // index into parts: the rank that came last
  double wait(const Part& p) const { return parts[late].begin > p.begin ? parts[late].begin - p.begin : 0; }
  double waited() const;  // time that all others waited, summed
};

std::vector<Meeting> meetings(const std::vector<RankTrace>& traces, const std::vector<Alignment>& clocks);

/// How much one rank made the others wait.
struct Straggler {
  int rank = 0;
  int times = 0;      // how often it came last
  double waited = 0;  // time that the others waited, summed
  std::string worst;  // the meeting with the longest wait
  double worst_waited = 0;
  std::string cause;        // the work that took longer than on the others before those meetings; empty: none
  double cause_excess = 0;  // how much longer, in total
};

struct PathSegment {
  int rank = 0;
  std::string what;  // name without layer numbers; "idle" if there was no work
  double seconds = 0;
};

struct CriticalPath {
  double seconds = 0;                 // from the first to the last event
  std::vector<PathSegment> segments;  // summed by rank and name, longest first
  std::vector<Straggler> stragglers;  // the rank that cost the most comes first
  std::vector<int> hops;              // ranks in the order of the path
};

/// The longest chain: backwards from the last event of all, along the work of a rank, and at a collective to the
/// rank that came last.
CriticalPath critical_path(const std::vector<RankTrace>& traces, const std::vector<Alignment>& clocks,
                           const std::vector<Meeting>& meetings);

std::string critical_path_text(const CriticalPath& path, std::size_t meetings);

}  // namespace hpcdl::lab

#pragma once
// Which rank made the others wait: collectives matched across ranks, and the longest chain through them.

#include <string>
#include <vector>

#include "hpcdl/lab/merge/align.h"

namespace hpcdl::lab {

/// A collective that at least two of the ranks took part in. Places are indices into the traces. Microseconds, aligned.
struct Meeting {
  struct Part {
    std::size_t trace, work;
    double begin, end;
  };
  std::string name;  // "all_reduce#12"
  std::vector<Part> parts;
  std::size_t late = 0;  // index into parts: who came last
  double wait(const Part& p) const { return parts[late].begin > p.begin ? parts[late].begin - p.begin : 0; }
  double waited() const;  // by all others together
};

std::vector<Meeting> meetings(const std::vector<RankTrace>& traces, const std::vector<Alignment>& clocks);

/// One rank's share in making the others wait.
struct Straggler {
  int rank = 0;
  int times = 0;      // it came last
  double waited = 0;  // by the others together
  std::string worst;  // the meeting that cost most
  double worst_waited = 0;
  std::string cause;        // what took longer than on the others before those meetings; empty: nothing did
  double cause_excess = 0;  // by how much, in all
};

struct PathSegment {
  int rank = 0;
  std::string what;  // name without layer numbers; "idle" where nothing was seen
  double seconds = 0;
};

struct CriticalPath {
  double seconds = 0;                 // from the first to the last event
  std::vector<PathSegment> segments;  // summed by rank and name, longest first
  std::vector<Straggler> stragglers;  // who cost most comes first
  std::vector<int> hops;              // ranks in the order in which the path passes them
};

/// The longest chain: backwards from the last event of all, along the order of a rank, and at a collective over to the
/// rank that came last.
CriticalPath critical_path(const std::vector<RankTrace>& traces, const std::vector<Alignment>& clocks,
                           const std::vector<Meeting>& meetings);

std::string critical_path_text(const CriticalPath& path, std::size_t meetings);

}  // namespace hpcdl::lab

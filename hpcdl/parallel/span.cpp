#include "hpcdl/parallel/span.h"

#include <string>
#include <vector>

#include "hpcdl/core/error.h"

namespace hpcdl::parallel {

int ranks_of_each_host(const comm::Group& group) {
  if (group.is_described()) return group.size();
  struct Run {
    int host, ranks;
    std::string name;
  };
  std::vector<Run> runs;
  for (int r = 0; r < group.size(); ++r) {
    if (runs.empty() || runs.back().host != group.host(r)) runs.push_back({group.host(r), 0, group.host_name(r)});
    ++runs.back().ranks;
  }
  for (const auto& run : runs)
    if (run.ranks != runs[0].ranks || (&run != &runs[0] && run.host == runs[0].host))
      fail_usage("parallel",
                 "parallel.zero_span = \"host\" needs the same number of ranks that share a batch on every host, one "
                 "host after the other; found {} on {}, then {} on {}: start equally many on each, or set "
                 "parallel.zero_span = \"all\"",
                 runs[0].ranks, runs[0].name, run.ranks, run.name);
  return runs[0].ranks;
}

Span span_of(const comm::Group& group, int ranks) {
  const int n = group.size(), at = group.rank();
  require(ranks >= 1 && n % ranks == 0, "parallel", "expected blocks of ranks that divide {}, got blocks of {}", n,
          ranks);
  if (ranks == n) return {group, {}};
  const std::string within = group.name() + ".host", across = group.name() + ".hosts";
  if (group.is_described())
    return {ranks > 1 ? comm::Group::described(at % ranks, ranks, within) : comm::Group(),
            comm::Group::described(at / ranks, n / ranks, across)};
  return {group.split(at / ranks, at % ranks, within), group.split(at % ranks, at / ranks, across)};
}

}  // namespace hpcdl::parallel

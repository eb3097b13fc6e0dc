#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hpcdl/pipe/costs.h"
#include "hpcdl/pipe/schedule.h"
#include "hpcdl/pipe/waits.h"

namespace hpcdl::pipe {

/// Seconds from the begin of the step, or the unit of the costs.
struct Span {
  double begin = 0, end = 0;
};

struct RankUse {
  double busy = 0;  // computing
  double idle = 0;  // the rest of the makespan
  int frames = 0;
  std::int64_t peak_bytes = 0;  // state, frames, and places where data arrive
  std::int64_t wire_bytes = 0;  // sent to other ranks
  std::int64_t host_bytes = 0;  // to and from host memory
};

struct Simulation {
  double makespan = 0;
  double bubble = 0;                     // the idle share of all ranks' time
  std::vector<std::vector<Span>> spans;  // by rank and action
  std::vector<RankUse> ranks;
};

struct Rates {
  LinkRate link, host;
};

/// When every action of a lowered schedule runs, and what its ranks need: exact for these costs, since every begin is the
/// latest end of what the action waits for. `stages`: the cost of each stage. Reductions over replicas and the update
/// take no time. `vocabulary`: of a schedule whose ranks divide one. Throws Error if the schedule is not lowered or there is another number of stages.
Simulation simulate(const Schedule& schedule, std::span<const PartCost> stages, const Rates& rates = {},
                    Wiring wiring = Wiring::links, const VocabularyCost& vocabulary = {});

}  // namespace hpcdl::pipe

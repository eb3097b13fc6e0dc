#pragma once

#include "hpcdl/train/memory_plan.h"
#include "hpcdl/train/task.h"

namespace hpcdl::train {

/// Ranks that share the memory of this rank's host.
int ranks_of_host(const comm::Group& world);

/// Plans the run of this rank, and smaller runs if some rank has too little memory, or `always`. Collective.
/// `host_limit`: see Hooks::host_memory_limit. `threads`: those that compute.
MemoryAdvice advise(RunConfig& config, const Task& task, const parallel::Mesh& mesh, std::int64_t host_limit,
                    int threads, bool always);

}  // namespace hpcdl::train

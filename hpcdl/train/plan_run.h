#pragma once

#include "hpcdl/train/memory_plan.h"
#include "hpcdl/train/task.h"

namespace hpcdl::train {

/// Plans the run of this rank, and smaller runs if some rank has too little memory, or `always`. Collective.
/// `host_limit`: see Hooks::host_memory_limit. `threads`: those that compute.
MemoryAdvice advise(RunConfig& config, const Task& task, const parallel::Mesh& mesh, std::int64_t host_limit,
                    int threads, bool always);

}  // namespace hpcdl::train

#pragma once
// How long a run is, and its learning rates: they may depend on the data and on the number of ranks.

#include "hpcdl/optim/schedule.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/train/config.h"
#include "hpcdl/train/progress.h"
#include "hpcdl/train/task.h"

namespace hpcdl::train {

/// Rows of an optimizer step, over all ranks.
std::int64_t rows_of_step(const RunConfig& config, const parallel::Mesh& mesh);

/// Steps to the end of the last epoch, for a run that goes on at that sample. Earlier steps may have had another size,
/// as on another number of ranks, so epochs are counted in samples. rows: of an epoch; of_step: of a step.
std::int64_t steps_from(const data::LoaderState& at, std::int64_t epochs, std::int64_t rows, std::int64_t of_step);

/// The learning rates of a run of that many steps; says how they were scaled, and warns of a warm-up that never ends.
Schedule run_schedule(const RunConfig& config, std::int64_t rows_of_step, std::int64_t steps, Progress& progress);

}  // namespace hpcdl::train

#pragma once

#include "hpcdl/machine/roofs.h"
#include "hpcdl/pipe/costs.h"
#include "hpcdl/train/config.h"

namespace hpcdl::lab::pipe {

/// The costs of the layers of a run, without its data and on one rank: each record takes the time that the roofs allow
/// (machine/speed_of_light.h). Transfers take the rate that was measured between two ranks; if none was, no time. Host
/// memory takes no time. Resolves `config`.
hpcdl::pipe::Costs costs_of_run(train::RunConfig& config, const Roofs& roofs);

}  // namespace hpcdl::lab::pipe

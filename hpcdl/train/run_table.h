#pragma once

#include "hpcdl/io/config_table.h"
#include "hpcdl/train/config.h"

namespace hpcdl::train {

/// The fields of a run as a table, which refers to `config`. Instantiated in one place, because its code is long.
io::ConfigTable table_of(RunConfig& config);

}  // namespace hpcdl::train

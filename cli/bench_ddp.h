#pragma once

#include <functional>

#include "cli/command.h"

namespace hpcdl::cli {

/// Adds `hpcdl bench ddp` to the verb; the returned function runs it.
std::function<int()> add_bench_ddp(const Command& bench);

}  // namespace hpcdl::cli

#pragma once

#include <functional>

#include "cli/command.h"

namespace hpcdl::cli {

/// Adds `hpcdl bench tp` to the verb; what it returns runs it.
std::function<int()> add_bench_tp(const Command& bench);

}  // namespace hpcdl::cli

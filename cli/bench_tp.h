#pragma once

#include <functional>

#include "cli/command.h"

namespace hpcdl::cli {

/// Adds `hpcdl bench tp` to the verb; the returned function runs it.
std::function<int()> add_bench_tp(const Command& bench);

}  // namespace hpcdl::cli

#pragma once

#include <functional>

#include "cli/command.h"

namespace hpcdl::cli {

/// Adds `hpcdl bench zero` to the verb; the returned function runs it.
std::function<int()> add_bench_zero(const Command& bench);

}  // namespace hpcdl::cli

#pragma once

#include <functional>

#include "cli/command.h"

namespace hpcdl::cli {

/// Adds `hpcdl bench comm` to the verb; what it returns runs it.
std::function<int()> add_bench_comm(const Command& bench);

}  // namespace hpcdl::cli

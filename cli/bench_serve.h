#pragma once

#include <functional>

#include "cli/command.h"

namespace hpcdl::cli {

/// Adds `hpcdl bench serve` to the verb; the returned function runs it.
std::function<int()> add_bench_serve(const Command& bench);

}  // namespace hpcdl::cli

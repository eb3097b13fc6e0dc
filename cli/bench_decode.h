#pragma once

#include <functional>

#include "cli/command.h"

namespace hpcdl::cli {

/// Adds `hpcdl bench decode` to the verb; the returned function runs it.
std::function<int()> add_bench_decode(const Command& bench);

}  // namespace hpcdl::cli

#pragma once

#include <functional>

#include "cli/command.h"

namespace hpcdl::cli {

/// Adds `hpcdl bench compose` to the verb; the returned function runs it.
std::function<int()> add_bench_compose(const Command& bench);

}  // namespace hpcdl::cli

#pragma once

#include <functional>

#include "hpcdl/comm/group.h"

namespace hpcdl::cli {

/// Runs a collective bench on `threads` ranks that are threads of this process, or, with 0, on those that a launcher
/// has started. Returns the exit code.
int on_bench_ranks(int threads, const std::function<void(const comm::Group& world)>& bench);

}  // namespace hpcdl::cli

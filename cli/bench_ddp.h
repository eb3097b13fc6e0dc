#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace hpcdl::cli {

/// Adds `hpcdl bench ddp` to the verb; what it returns runs it.
std::function<int()> add_bench_ddp(CLI::App& bench);

}  // namespace hpcdl::cli

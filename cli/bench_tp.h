#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace hpcdl::cli {

/// Adds `hpcdl bench tp` to the verb; what it returns runs it.
std::function<int()> add_bench_tp(CLI::App& bench);

}  // namespace hpcdl::cli

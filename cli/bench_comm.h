#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace hpcdl::cli {

/// Adds `hpcdl bench comm` to the verb; what it returns runs it.
std::function<int()> add_bench_comm(CLI::App& bench);

}  // namespace hpcdl::cli

#pragma once
// The most threads that are useful on a machine.

#include <cstdint>
#include <string_view>

namespace hpcdl {

/// 16 for each processor of this machine, at most 1024: more threads only cost memory and never run together.
int most_threads();

/// Throws UsageError for more than most_threads(), and for less than 0; 0 means all usable threads. `name` is
/// the option, as users write it: "--threads", "train.threads".
void check_threads(std::int64_t threads, std::string_view area, std::string_view name);

}  // namespace hpcdl

#pragma once
// How many threads a machine has a use for.

#include <cstdint>
#include <string_view>

namespace hpcdl {

/// 16 for each processor of this machine, 1024 at most: beyond that threads cost their memory and are never run together.
int most_threads();

/// Throws UsageError for more than most_threads(), and for less than 0, which stands for all that are usable. `name` is
/// what asked for them, as people write it: "--threads", "train.threads".
void check_threads(std::int64_t threads, std::string_view area, std::string_view name);

}  // namespace hpcdl

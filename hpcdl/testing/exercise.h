#pragma once

#include <cstdint>

#include "hpcdl/group.h"

namespace hpcdl::testing {

/// Runs random collectives over the world and groups that are split from it: asynchronous or not, of all dtypes, odd
/// and zero sizes, in shared and in private memory, and compares each with a plain loop. The seed must be the same on
/// all ranks. Throws Error that names the first element that differs.
void exercise(const comm::Group& world, std::uint64_t seed, int iterations);

}  // namespace hpcdl::testing

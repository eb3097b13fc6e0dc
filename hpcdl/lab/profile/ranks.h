#pragma once
// What the profiles of many ranks need of each other: how far their clocks are apart, and all traces in one place.

#include <optional>

#include "hpcdl/comm/group.h"
#include "hpcdl/lab/merge/merge.h"

namespace hpcdl::lab {

/// Collective. Readings of rank 0's clock; empty on rank 0 and on ranks of its host, whose clock is the same.
std::vector<Ping> ping_rank_zero(const comm::Group& world, int times = 20);

/// Collective. The traces of all ranks on one clock; nothing on other ranks than 0.
std::optional<Merged> merge_ranks(const comm::Group& world, const std::string& trace);

}  // namespace hpcdl::lab

#pragma once
// Exchanges between the profiles of many ranks: the offsets of their clocks, and all traces in one place.

#include <optional>

#include "hpcdl/group.h"
#include "tools/merge/merge.h"

namespace hpcdl::lab {

/// Collective. Readings of rank 0's clock; empty on rank 0 and on ranks of its host, which have the same clock.
std::vector<Ping> ping_rank_zero(const comm::Group& world, int times = 20);

/// Collective. The traces of all ranks on one clock; nothing on ranks other than 0.
std::optional<Merged> merge_ranks(const comm::Group& world, const std::string& trace);

}  // namespace hpcdl::lab

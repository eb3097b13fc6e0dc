#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hpcdl/pipe/costs.h"

namespace hpcdl::pipe {

/// How many layers each stage has, in order; each has at least one.
using Partition = std::vector<int>;

/// What a stage may take: bytes of state and `frames[stage]` times those of its frames. 0: no limit.
struct MemoryLimit {
  std::int64_t bytes = 0;
  std::vector<int> frames = {};
};

/// The contiguous split whose largest stage takes the least time, found by dynamic programming; among equals the one
/// with the least sum of squares. Throws UsageError if there are fewer layers than stages, or if no split fits into
/// memory: it says what would.
Partition best_partition(std::span<const PartCost> layers, int stages, const MemoryLimit& limit = {});

/// The split that knows no costs: the layers between the first and the last one are dealt evenly, and those two (an
/// embedding and a head) are added to the first and the last stage.
Partition even_partition(int layers, int stages);

/// Throws UsageError unless parallel.layers, which gave the partition, has so many layers in so many stages: it says what
/// would fit.
void require_cut(const Partition& partition, int layers, int stages);

/// The costs of the stages of a partition.
std::vector<PartCost> stages_of(std::span<const PartCost> layers, const Partition& partition);

}  // namespace hpcdl::pipe

#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hpcdl::models {

/// Which layers of a model stay in memory, and which pass through a ring of blocks.
struct StreamPlan {
  std::vector<bool> streams;  // of each layer
  int blocks = 0;             // of the ring; 0: all layers stay
  std::int64_t bytes = 0;     // of all memory

  bool operator==(const StreamPlan&) const = default;
};

/// As many layers stay as fit into `ram` bytes; they are spread evenly, so that reads go on while they compute.
/// `others`: bytes that stay besides layers. Throws Error that says the least that would do.
StreamPlan plan_streaming(std::int64_t others, std::span<const std::int64_t> layers, std::int64_t ram);

}  // namespace hpcdl::models

#pragma once

#include <cstdint>
#include <limits>
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
/// `others`: bytes that stay besides layers. Throws Error that says the least that would do: here, or `instead` in
/// another way.
StreamPlan plan_streaming(std::int64_t others, std::span<const std::int64_t> layers, std::int64_t ram,
                          std::int64_t instead = std::numeric_limits<std::int64_t>::max());

/// Memory for the experts of a mixture that are read when tokens choose them.
struct ExpertPlan {
  std::int64_t experts = 0;  // in memory at a time; 0: there is no room for those of a layer
  std::int64_t bytes = 0;    // of all memory, or the least that would do

  bool operator==(const ExpertPlan&) const = default;
};

/// If all but the experts fits into `ram` bytes, and the experts of one layer: as many experts as fit too. Otherwise
/// none. `others`: bytes of what stays; `expert`: of each expert; `of_layer`, `all`: the experts of a layer, and of the
/// model.
ExpertPlan plan_experts(std::int64_t others, std::int64_t expert, std::int64_t of_layer, std::int64_t all,
                        std::int64_t ram);

}  // namespace hpcdl::models

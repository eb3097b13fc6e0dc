#include "hpcdl/pipe/costs.h"

#include <fmt/format.h>

namespace hpcdl::pipe {

PartCost sum(std::span<const PartCost> layers) {
  PartCost all{.forward = 0, .input_gradient = 0, .weight_gradient = 0};
  for (const auto& layer : layers) {
    all.forward += layer.forward;
    all.input_gradient += layer.input_gradient;
    all.weight_gradient += layer.weight_gradient;
    all.state_bytes += layer.state_bytes;
    all.value_bytes += layer.value_bytes;
    all.frame_bytes += layer.frame_bytes;
    all.forward_records += layer.forward_records;
    all.input_records += layer.input_records;
    all.weight_records += layer.weight_records;
  }
  if (layers.empty()) return all;
  all.name =
      layers.size() == 1 ? layers.front().name : fmt::format("{} to {}", layers.front().name, layers.back().name);
  all.gradient_bytes = layers.front().gradient_bytes;
  all.activation_bytes = layers.back().activation_bytes;
  return all;
}

std::vector<PartCost> equal_stages(int ranks, int chunks) {
  std::vector<PartCost> stages;
  const double each = 1.0 / chunks;
  for (int stage = 0; stage < ranks * chunks; ++stage)
    stages.push_back(
        {.name = fmt::format("stage {}", stage), .forward = each, .input_gradient = each, .weight_gradient = each});
  return stages;
}

}  // namespace hpcdl::pipe

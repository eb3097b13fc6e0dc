#pragma once

#include "hpcdl/ops/batch_norm/batch_norm.h"
#include "hpcdl/ops/cases.h"

namespace hpcdl::contract {

inline void batch_norm_cases(auto& to) {
  for (const bool relu : {false, true})
    to.add(relu ? "batch_norm+relu" : "batch_norm", "NxHxWxC", {"x NHWC", "weight C master", "bias C master"},
           image_shapes(),
           [relu](const auto& v) { return batch_norm(v[0], v[1], v[2], v.none(), v.none(), {.relu = relu}); });
  auto residual = image_shapes();
  residual.push_back({32, 4, 4, 512});  // of ResNet-18 on small images
  to.add("batch_norm+residual_relu", "NxHxWxC", {"a NHWC", "b NHWC", "weight C master", "bias C master"}, residual,
         [](const auto& v) { return batch_norm(v[0], v[2], v[3], v.none(), v.none(), {.relu = true}, v[1]); });
}

}  // namespace hpcdl::contract

#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/max_pool2d/max_pool2d.h"

namespace hpcdl::contract {

inline void max_pool2d_cases(auto& to) {
  to.add("max_pool2d", "NxHxWxC", {"x NHWC"}, image_shapes(), [](const auto& v) { return max_pool2d(v[0]); });
  to.add("max_pool2d+overlap", "NxHxWxC", {"x NHWC"}, {{32, 112, 112, 64}},
         [](const auto& v) { return max_pool2d(v[0], {.kernel = 3, .stride = 2, .pad = 1}); });
}

}  // namespace hpcdl::contract

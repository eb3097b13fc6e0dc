#pragma once

#include "hpcdl/ops/avg_pool2d/avg_pool2d.h"
#include "hpcdl/ops/cases.h"

namespace hpcdl::contract {

inline void avg_pool2d_cases(auto& to) {
  to.add("avg_pool2d", "NxHxWxC", {"x NHWC"}, image_shapes(), [](const auto& v) { return avg_pool2d(v[0]); });
}

}  // namespace hpcdl::contract

#pragma once

#include "hpcdl/ops/adaptive_avg_pool2d/adaptive_avg_pool2d.h"
#include "hpcdl/ops/cases.h"

namespace hpcdl::contract {

inline void adaptive_avg_pool2d_cases(auto& to) {
  to.add("adaptive_avg_pool2d", "NxHxWxC", {"x NHWC"}, {{128, 8, 8, 512}, {64, 7, 7, 2048}},
         [](const auto& v) { return adaptive_avg_pool2d(v[0]); });
}

}  // namespace hpcdl::contract

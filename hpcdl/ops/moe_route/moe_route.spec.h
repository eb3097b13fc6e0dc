#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/moe_route/moe_route.h"

namespace hpcdl::contract {

inline void moe_route_cases(auto& to) {
  to.add_forward("moe_route", "RxE", {"scores RE f32"}, {{8192, 128}, {64, 128}},
                 [](const auto& v) { return moe_route(v[0], {.count = 2})[0]; });
}

}  // namespace hpcdl::contract

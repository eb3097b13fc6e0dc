#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/cast/cast.h"

namespace hpcdl::contract {

inline void cast_cases(auto& to) {
  to.add("cast", "N", {"x N"}, vector_shapes(),
         [](const auto& v) { return cast(v[0], v.dtype == DType::f32 ? DType::bf16 : DType::f32); });
}

}  // namespace hpcdl::contract

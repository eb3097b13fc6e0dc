#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/dropout/dropout.h"

namespace hpcdl::contract {

inline void dropout_cases(auto& to) {
  to.add("dropout", "N", {"x N"}, vector_shapes(), [](const auto& v) { return dropout(v[0], 0.1f); });
}

}  // namespace hpcdl::contract

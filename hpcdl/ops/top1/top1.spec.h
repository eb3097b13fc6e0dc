#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/top1/top1.h"

namespace hpcdl::contract {

inline void top1_cases(auto& to) {
  to.add_forward("top1", "TxV", {"logits TV", "targets T<V"}, {{8192, 1000}},
                 [](const auto& v) { return top1(v[0], v[1]); });
}

}  // namespace hpcdl::contract

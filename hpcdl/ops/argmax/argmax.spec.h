#pragma once

#include "hpcdl/ops/argmax/argmax.h"
#include "hpcdl/ops/cases.h"

namespace hpcdl::contract {

inline void argmax_cases(auto& to) {
  to.add_forward("argmax", "RxV", {"ids R<V", "logits RV"}, {{512, 128256}, {1, 32000}},
                 [](const auto& v) { return argmax_into(v[0], v[1]), v[0]; });
}

}  // namespace hpcdl::contract

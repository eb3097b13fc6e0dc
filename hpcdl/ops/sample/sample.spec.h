#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/sample/sample.h"

namespace hpcdl::contract {

inline void sample_cases(auto& to) {
  to.add_forward("sample", "RxVxW", {"ids R<V", "logits RV f32", "rules RW<V"}, {{512, 128256, 10}, {1, 32000, 10}},
                 [](const auto& v) { return sample_into(v[0], v[1], v[2]), v[0]; });
}

}  // namespace hpcdl::contract

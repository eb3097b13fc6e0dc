#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/lm_head_gradient/lm_head_gradient.h"

namespace hpcdl::contract {

inline void lm_head_gradient_cases(auto& to) {
  to.add("lm_head_gradient", "TxVxC", {"h TC", "w VC", "targets T<V"}, {{256, 50304, 768}}, [](const auto& v) {
      return lm_head_gradient(v[0], v[1], v[2])[0];
    }).training_only = true;
}

}  // namespace hpcdl::contract

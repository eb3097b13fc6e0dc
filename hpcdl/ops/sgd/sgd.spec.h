#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/sgd/sgd.h"

namespace hpcdl::contract {

inline void sgd_cases(auto& to) {
  to.add_forward("sgd", "N", {"p N", "p.grad N", "m N master"}, vector_shapes(589824), [](const auto& v) {
    record_sgd(v.graph, std::vector{SgdTensor<decltype(v.none())>{v[0], v[1], v[2]}},
               {.momentum = 0.9f, .nesterov = true, .weight_decay = 5e-4f});
    return v.none();
  });
}

}  // namespace hpcdl::contract

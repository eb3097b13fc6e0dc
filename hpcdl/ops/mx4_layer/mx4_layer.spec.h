#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/mx4_layer/mx4_layer.h"

namespace hpcdl::contract {

inline void mx4_layer_cases(auto& to) {
  to.add_forward("mx4_layer", "MxNxK", {}, {{1024, 3072, 768}}, [](const auto& v) {
      const auto fitting = [&](char dim) { return (v.dim(dim) + kMxBlock - 1) / kMxBlock * kMxBlock; };
      const auto m = fitting('M'), n = fitting('N'), k = fitting('K');
      const auto x = v.graph.input("x", Spec{{m, k}, DType::bf16}), w = v.graph.input("w", Spec{{n, k}, DType::f32});
      return mx4_layer(mx4_project(x, {}), mx4_project(w, {}), v.none(), v.none(), {});
    }).cpu_only = true;
}

}  // namespace hpcdl::contract

#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/fp8_layer/fp8_layer.h"

namespace hpcdl::contract {

inline void fp8_layer_cases(auto& to) {
  const auto family = [&](const char* name, Fp8Scaling scaling) {
    to.add_forward(name, "MxNxK", {}, {{2048, 2048, 2048}, {1024, 3072, 768}}, [scaling](const auto& v) {
      const auto m = (v.dim('M') + 15) / 16 * 16, n = (v.dim('N') + 15) / 16 * 16, k = (v.dim('K') + 15) / 16 * 16;
      const auto x = v.graph.input("x", Spec{{m, k}, DType::bf16}), w = v.graph.input("w", Spec{{n, k}, DType::f32});
      const auto cast = [&](const auto& t) { return fp8_operand(v.graph, t, {.scaling = scaling}, v.none()); };
      return fp8_layer(x, w, v.none(), v.none(), cast(x), cast(w), v.none(), {.scaling = scaling});
    });
  };
  family("fp8_layer", Fp8Scaling::tensor);
  family("fp8_layer+rows", Fp8Scaling::row);
}

}  // namespace hpcdl::contract

#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/fp8_quantize/fp8_quantize.h"

namespace hpcdl::contract {

inline void fp8_quantize_cases(auto& to) {
  const auto family = [&](const char* name, Fp8Quantize::Args args) {
    to.add_forward(name, "RxC", {"x RC"}, {{8192, 4096}},
                   [args](const auto& v) { return fp8_quantize(v[0], args)[0]; });
  };
  family("fp8_quantize", {});
  family("fp8_quantize+blocks", {.scaling = Fp8Scaling::row_blocks});
  family("fp8_quantize+transposed", {.scaling = Fp8Scaling::row_blocks, .transposed = true});
}

}  // namespace hpcdl::contract

#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/fp8_cast/fp8_cast.h"

namespace hpcdl::contract {

inline void fp8_cast_cases(auto& to) {
  const auto family = [&](const char* name, Fp8Cast::Args args, bool delayed) {
    to.add_forward(name, "RxC", {"x RC"}, {{8192, 4096}}, [args, delayed](const auto& v) {
      return fp8_cast(v[0], args, delayed ? v.graph.input("history", amax_history_spec(1)) : v.none())[0];
    });
  };
  family("fp8_cast", {}, false);
  family("fp8_cast+delayed", {}, true);
  family("fp8_cast+rows", {.scaling = Fp8Scaling::row}, false);
}

}  // namespace hpcdl::contract

#pragma once

#include <string_view>
#include <type_traits>

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/expert_mlp/expert_mlp.h"

namespace hpcdl::contract {

/// One of E experts of F hidden values; every row has chosen two.
inline void expert_mlp_cases(auto& to) {
  to.add_forward("expert_mlp", "RxCxFxE",
                 {"base RC", "x RC", "weights R2 f32", "experts R2<E", "gate FC", "up FC", "down CF"},
                 {{512, 2048, 768, 8}, {1, 2048, 768, 8}}, [](const auto& v) {
                   using W = Matrix<std::remove_cvref_t<decltype(v[0])>>;
                   const auto matrix = [&](std::string_view name) {
                     W w;
                     w.w = v[name];
                     return w;
                   };
                   return expert_mlp(v[0], v[1], v[2], v[3], matrix("gate"), matrix("up"), matrix("down"),
                                     {.constant_weights = true});
                 });
}

}  // namespace hpcdl::contract

#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/logprobs/logprobs.h"

namespace hpcdl::contract {

inline constexpr int kLogprobsOfSpec = 20;  // most probable tokens

/// Of the chosen token and the 20 most likely ones.
inline void logprobs_cases(auto& to) {
  auto& family = to.add_forward(
      "logprobs", "RxV", {"logits RV f32", "wanted R<V", "found R<V"}, {{64, 128256}, {1, 32000}}, [](const auto& v) {
        const auto result = v.graph.keep(v.graph.temporary("result", Logprobs::result(v.dim('R'), kLogprobsOfSpec)));
        logprobs_into(result, v[0], v[1], v[2]);
        return result;
      });
  family.integer = [](std::string_view name, std::int64_t i, const Shape& s) -> std::int64_t {
    return name == "wanted" ? -1 : i * 7 % s[1];
  };
}

}  // namespace hpcdl::contract

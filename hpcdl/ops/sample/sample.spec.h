#pragma once

#include <array>
#include <bit>

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/sample/sample.h"

namespace hpcdl::contract {

/// With a temperature and top-p, the usual rule of a text.
inline void sample_cases(auto& to) {
  auto& family =
      to.add_forward("sample", "RxV", {"ids R<V", "logits RV f32", "rules R(25)<V"}, {{512, 128256}, {1, 32000}},
                     [](const auto& v) { return sample_into(v[0], v[1], v[2]), v[0]; });
  family.integer = [](std::string_view name, std::int64_t i, const Shape&) -> std::int64_t {
    constexpr SampleRule kRule{.temperature = 0.8F, .top_p = 0.95F};
    using Words = std::array<std::int32_t, Sample::kRuleWords>;
    return name == "rules" ? std::bit_cast<Words>(kRule)[static_cast<std::size_t>(i % Sample::kRuleWords)] : 0;
  };
}

}  // namespace hpcdl::contract

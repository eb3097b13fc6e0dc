#pragma once

#include <bit>
#include <cmath>

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/logit_rules/logit_rules.h"

namespace hpcdl::contract {

/// Logit `id` of a row after its rules.
inline double logit_after(double x, std::int32_t id, const RowRulesView& rules) {
  const auto at = static_cast<std::size_t>(id);
  for (const auto& c : rules.biases)
    if (c.id == id) x += static_cast<double>(c.bias);
  const bool allowed = rules.mask.empty() || (rules.mask[at / 32] >> at % 32 & 1u);
  if (!allowed && !std::isnan(x) && x != INFINITY) x = -INFINITY;
  const auto& p = rules.penalties;
  for (const auto& c : rules.counts) {
    if (c.id != id) continue;
    x = x > 0 ? x / static_cast<double>(p.repetition) : x * static_cast<double>(p.repetition);
    if (c.times > 0) x -= static_cast<double>(p.presence) + c.times * static_cast<double>(p.frequency);
  }
  return x;
}

/// Every row has a mask of its own, which allows all tokens so that results are finite, 64 biases and counts of 64 tokens.
inline void logit_rules_cases(auto& to) {
  constexpr std::int64_t kChanges = 64;
  auto& family = to.add_forward("logit_rules", "RxV", {"logits RV f32"}, {{64, 128256}, {1, 32000}}, [](const auto& v) {
    const auto rows = v.dim('R');
    const auto input = [&](const char* name, Shape s) { return v.graph.input(name, {std::move(s), DType::i32}); };
    logit_rules_into(v[0], input("rules", {rows, LogitRules::kRuleWords}), input("starts", {2 * rows + 1}),
                     input("changes", {2 * rows * kChanges, LogitRules::kChangeWords}),
                     input("masks", {rows, LogitRules::mask_words(v.dim('V'))}));
    return v[0];
  });
  family.integer = [](std::string_view name, std::int64_t i, const Shape& s) -> std::int64_t {
    const auto word = [](float f) { return std::bit_cast<std::int32_t>(f); };
    const auto row = i / LogitRules::kRuleWords, change = i / LogitRules::kChangeWords;
    if (name == "rules") return i % LogitRules::kRuleWords < 3 ? word(1.25F) : row;
    if (name == "starts") return i * kChanges;
    if (name == "masks") return -1;
    if (i % LogitRules::kChangeWords == 0) return change % kChanges * (s[1] / kChanges);  // distinct ids
    return i % LogitRules::kChangeWords == 1 ? change % 3 : word(-0.5F);
  };
  family.nearest_supported = [](Shape s) {
    s[1] = std::max(s[1], std::int64_t{kChanges});
    return s;
  };
}

}  // namespace hpcdl::contract

#include "hpcdl/ops/logit_rules/row_rules.h"

#include <algorithm>
#include <limits>

namespace hpcdl {

void apply_rules(std::span<float> logits, const RowRulesView& rules) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto each = [&](std::span<const LogitChange> changes, auto change) {
    for (const auto& c : changes)
      if (c.id >= 0 && c.id < std::ssize(logits)) change(logits[static_cast<std::size_t>(c.id)], c);
  };
  each(rules.biases, [](float& x, const LogitChange& c) { x += c.bias; });
  for (std::size_t w = 0; w < rules.mask.size() && 32 * w < logits.size(); ++w) {
    if (rules.mask[w] == ~0u) continue;
    const auto count = std::min<std::size_t>(32, logits.size() - 32 * w);
    for (std::size_t i = 0; i < count; ++i)
      if (float& x = logits[32 * w + i]; !(rules.mask[w] >> i & 1) && x < kInfinity) x = -kInfinity;
  }
  const auto& p = rules.penalties;
  each(rules.counts, [&](float& x, const LogitChange& c) {
    x = x > 0 ? x / p.repetition : x * p.repetition;
    if (c.times > 0) x -= p.presence + static_cast<float>(c.times) * p.frequency;
  });
}

}  // namespace hpcdl

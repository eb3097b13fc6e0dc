#pragma once
// What the rules of a text change in its logits before a token is chosen from them.

#include <cstdint>
#include <span>
#include <vector>

namespace hpcdl {

/// Of one token: a bias, or how often the token stands in the new part of its text.
struct LogitChange {
  std::int32_t id = 0, times = 0;
  float bias = 0;
};

/// Penalties of tokens that stand in the text: first positive logits are divided and others multiplied by `repetition`;
/// then those of tokens in the new part lose `presence`, and `frequency` for each time.
struct LogitPenalties {
  float repetition = 1, presence = 0, frequency = 0;
};

/// The rules of one row, in their order: biases are added; logits of tokens without a bit in the mask (bit id % 32 of word
/// id / 32) become -infinity, unless they are NaN or +infinity, which tell of a broken model; then penalties. Each list
/// has an id once; ids outside the row are ignored.
struct RowRules {
  LogitPenalties penalties = {};
  std::vector<LogitChange> biases = {}, counts = {};
  std::vector<std::uint32_t> mask = {};  // empty: all tokens

  bool any() const { return !biases.empty() || !counts.empty() || !mask.empty(); }
};

/// The same without ownership.
struct RowRulesView {
  LogitPenalties penalties;
  std::span<const LogitChange> biases, counts;
  std::span<const std::uint32_t> mask;
  RowRulesView(const LogitPenalties& p, std::span<const LogitChange> biases_, std::span<const LogitChange> counts_,
               std::span<const std::uint32_t> mask_)
      : penalties(p), biases(biases_), counts(counts_), mask(mask_) {}
  RowRulesView(const RowRules& r) : RowRulesView(r.penalties, r.biases, r.counts, r.mask) {}
};

void apply_rules(std::span<float> logits, const RowRulesView& rules);

}  // namespace hpcdl

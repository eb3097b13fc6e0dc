#pragma once
// The rules of a text that change logits, for its next token: the same on a CPU and on a GPU (ops/logit_rules).

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "hpcdl/infer/sampling_options.h"
#include "hpcdl/infer/token_constraint.h"
#include "hpcdl/ops/logit_rules/row_rules.h"

namespace hpcdl::infer {

/// What the penalties of a text depend on.
class TokenCounts {
 public:
  void add_prompt(std::span<const std::int32_t> ids);
  void add_output(std::int32_t id) { ++of(id).times; }
  /// Of each token of the text, how often it stands after the prompt.
  const std::vector<LogitChange>& list() const { return list_; }

 private:
  LogitChange& of(std::int32_t id);

  std::vector<LogitChange> list_;
  std::unordered_map<std::int32_t, std::size_t> places_;  // in the list
};

/// What the rules of one text depend on beside its options.
struct SamplingState {
  std::uint64_t index = 0;                 // of the new token
  const TokenCounts* counts = nullptr;     // for penalties
  std::span<const std::int64_t> eos = {};  // the model's ids that end a text
  TokenConstraint* constraint = nullptr;
};

inline constexpr const char* kNoTokenLeft =
    "the rules for this text leave no token: allow more of them, or let the text end earlier";

/// Sets `to`, whose memory it reuses, to the rules for a row of `vocab` logits.
void set_rules(RowRules& to, const SamplingOptions& options, const SamplingState& state, std::int64_t vocab);

}  // namespace hpcdl::infer

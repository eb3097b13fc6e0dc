#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "hpcdl/infer/request.h"
#include "hpcdl/ops/sample/row_sampler.h"

namespace hpcdl::infer {

/// What the penalties of a text depend on.
class TokenCounts {
 public:
  void add_prompt(std::span<const std::int32_t> ids);
  void add_output(std::int32_t id) { ++times_[id]; }
  void penalise(std::span<float> logits, const SamplingOptions& options) const;

 private:
  std::unordered_map<std::int32_t, std::int32_t> times_;  // of tokens in the text, how often after the prompt
};

/// What the rules of one text depend on beside its options.
struct SamplingState {
  std::uint64_t index = 0;                 // of the new token
  const TokenCounts* counts = nullptr;     // for penalties
  std::span<const std::int64_t> eos = {};  // the model's ids that end a text
  TokenConstraint* constraint = nullptr;
};

/// Chooses tokens on the host; keeps its memory between calls.
class Sampler {
 public:
  /// The token after a position, from its logits, which it changes: a pure function of its arguments. Ties go to the
  /// lowest id. Throws Error if a logit is NaN or +infinity, all are -infinity, or the rules leave no token.
  std::int32_t sample(std::span<float> logits, const SamplingOptions& options, const SamplingState& state);
  /// Those of `id` and of the `most` most likely tokens, from unchanged logits. Throws Error as sample() does.
  Token logprobs(std::span<const float> logits, std::int32_t id, int most);

 private:
  void apply_rules(std::span<float> logits, const SamplingOptions& options, const SamplingState& state);

  RowSampler rows_;
  std::vector<std::uint32_t> mask_;
};

}  // namespace hpcdl::infer

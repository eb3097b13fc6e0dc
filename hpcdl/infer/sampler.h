#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hpcdl/infer/request.h"
#include "hpcdl/infer/text_rules.h"
#include "hpcdl/ops/sample/row_sampler.h"

namespace hpcdl::infer {

/// The token that comes first in what write_logprobs() wrote, with the `most` most likely ones after it.
Token token_of(std::span<const TokenLogprob> scored, int most);

/// Chooses tokens on the host; keeps its memory between calls.
class Sampler {
 public:
  /// The token after a position, from its logits, which it changes: a pure function of its arguments. Ties go to the
  /// lowest id. Throws Error if a logit is NaN or +infinity, all are -infinity, or the rules leave no token.
  std::int32_t sample(std::span<float> logits, const SamplingOptions& options, const SamplingState& state);
  /// Those of `id` and of the `most` most likely tokens, from unchanged logits. Throws Error as sample() does.
  Token logprobs(std::span<const float> logits, std::int32_t id, int most);

 private:
  RowSampler rows_;
  RowRules rules_;
  std::vector<TokenLogprob> scored_;
};

}  // namespace hpcdl::infer

#pragma once

#include <cstdint>
#include <span>

#include "hpcdl/infer/request.h"
#include "hpcdl/infer/text_rules.h"
#include "hpcdl/ops/sample/row_sampler.h"

namespace hpcdl::infer {

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
};

}  // namespace hpcdl::infer

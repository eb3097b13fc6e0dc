#include "hpcdl/infer/sampling_options.h"

#include <cmath>

#include "hpcdl/core/error.h"

namespace hpcdl::infer {

void SamplingOptions::check(std::int64_t vocab) const {
  if (!(temperature >= 0 && std::isfinite(temperature)))
    fail_usage("generate", "temperature must be 0 (greedy) or more, and finite, got {}", temperature);
  if (top_k < 0) fail_usage("generate", "top-k must be 0 (all) or more, got {}", top_k);
  if (!(top_p > 0 && top_p <= 1)) fail_usage("generate", "top-p must lie in (0, 1], got {}", top_p);
  if (!(min_p >= 0 && min_p <= 1)) fail_usage("generate", "min-p must lie in [0, 1], got {}", min_p);
  if (!(typical_p > 0 && typical_p <= 1)) fail_usage("generate", "typical-p must lie in (0, 1], got {}", typical_p);
  if (!(repetition_penalty > 0 && std::isfinite(repetition_penalty)))
    fail_usage("generate", "the repetition penalty must be more than 0 (1: none), and finite, got {}",
               repetition_penalty);
  if (!std::isfinite(presence_penalty))
    fail_usage("generate", "the presence penalty must be finite, got {}", presence_penalty);
  if (!std::isfinite(frequency_penalty))
    fail_usage("generate", "the frequency penalty must be finite, got {}", frequency_penalty);
  if (min_tokens < 0) fail_usage("generate", "min-tokens must be 0 or more, got {}", min_tokens);
  if (logprobs < -1) fail_usage("generate", "logprobs must be -1 (none) or more, got {}", logprobs);
  const auto check_id = [&](std::int32_t id, const char* of) {
    if (id < 0 || id >= vocab) fail_usage("generate", "{}: token {} is not in the vocabulary of {}", of, id, vocab);
  };
  for (const auto& [id, bias] : logit_bias) {
    check_id(id, "logit bias");
    if (!std::isfinite(bias)) fail_usage("generate", "the logit bias of token {} must be finite, got {}", id, bias);
  }
  for (const auto id : allowed_ids) check_id(id, "allowed ids");
  for (const auto id : banned_ids) check_id(id, "banned ids");
  for (const auto id : stop_ids) check_id(id, "stop ids");
}

}  // namespace hpcdl::infer

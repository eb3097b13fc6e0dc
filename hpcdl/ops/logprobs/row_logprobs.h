#pragma once
// The log-probabilities of one row of logits on the host.

#include <cstdint>
#include <span>

namespace hpcdl {

/// A token and the natural logarithm of its probability, which is a softmax of the logits.
struct TokenLogprob {
  std::int32_t id;
  float logprob;
};

/// Writes to `to` the token `id`, then the most likely tokens in their order, the first of equal ones first, as many as
/// `to` has room for; tokens that the row lacks are {-1, -infinity}. `best`: largest_logit() of the row, which is no
/// negative number. `id` is one of the row's.
void write_logprobs(std::span<TokenLogprob> to, std::span<const float> logits, std::int64_t best, std::int32_t id);

}  // namespace hpcdl

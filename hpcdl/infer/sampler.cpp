#include "hpcdl/infer/sampler.h"

#include <cmath>

#include "hpcdl/core/error.h"

namespace hpcdl::infer {
namespace {

/// The place of the largest logit of a model.
std::int64_t largest_of_model(std::span<const float> logits) {
  const auto best = largest_logit(logits);
  if (best < 0) {
    const auto at = best == kNoToken ? 0 : -1 - best;
    fail("generate",
         "the logit of token {} is {}: the weights hold NaN or overflow; check them with `hpcdl inspect --check`", at,
         logits[static_cast<std::size_t>(at)]);
  }
  return best;
}

}  // namespace

std::int32_t Sampler::sample(std::span<float> logits, const SamplingOptions& o, const SamplingState& state) {
  auto best = largest_of_model(logits);
  set_rules(rules_, o, state, std::ssize(logits));
  if (rules_.any()) {
    apply_rules(logits, rules_);
    best = largest_logit(logits);
    require(best >= 0, "generate", "{}", kNoTokenLeft);
  }
  return rows_.sample(logits, best, o.rule(state.index));
}

Token Sampler::logprobs(std::span<const float> logits, std::int32_t id, int most) {
  const auto best = largest_of_model(logits);
  const double top = logits[static_cast<std::size_t>(best)];
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - top);
  const double all = top + std::log(sum);
  const auto of = [&](std::int32_t token) { return static_cast<float>(logits[static_cast<std::size_t>(token)] - all); };
  Token t{.id = id, .logprob = of(id), .top = {}};
  if (most > 0)
    for (const auto& c : rows_.most_likely(logits, best, static_cast<std::size_t>(most)))
      t.top.push_back({c.id, of(c.id)});
  return t;
}

}  // namespace hpcdl::infer

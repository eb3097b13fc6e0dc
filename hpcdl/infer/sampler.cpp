#include "hpcdl/infer/sampler.h"

#include <algorithm>
#include <iterator>

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

Token token_of(std::span<const TokenLogprob> scored, int most) {
  Token t{.id = scored[0].id, .logprob = scored[0].logprob, .top = {}};
  const auto top = scored.subspan(1, std::min(static_cast<std::size_t>(most), scored.size() - 1));
  std::ranges::copy_if(top, std::back_inserter(t.top), [](const TokenLogprob& of) { return of.id >= 0; });
  return t;
}

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
  scored_.resize(1 + std::min(static_cast<std::size_t>(most), logits.size()));
  write_logprobs(scored_, logits, largest_of_model(logits), id);
  return token_of(scored_, most);
}

}  // namespace hpcdl::infer

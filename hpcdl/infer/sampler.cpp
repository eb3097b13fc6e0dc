#include "hpcdl/infer/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "hpcdl/core/error.h"

namespace hpcdl::infer {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

/// The place of the largest logit of a model.
std::int64_t largest_of_model(std::span<const float> logits) {
  const auto best = largest_logit(logits);
  if (best < 0) {
    const auto at = -1 - best;
    fail("generate",
         "the logit of token {} is {}: the weights hold NaN or overflow; check them with `hpcdl inspect --check`", at,
         logits[static_cast<std::size_t>(at)]);
  }
  return best;
}

void apply_mask(std::span<float> logits, std::span<const std::uint32_t> mask) {
  for (std::size_t w = 0; w < mask.size(); ++w) {
    const auto count = std::min<std::size_t>(32, logits.size() - 32 * w);
    if (mask[w] == ~0u) continue;
    for (std::size_t i = 0; i < count; ++i)
      if (!(mask[w] >> i & 1)) logits[32 * w + i] = kNever;
  }
}

}  // namespace

void TokenCounts::add_prompt(std::span<const std::int32_t> ids) {
  for (const auto id : ids) times_.try_emplace(id, 0);
}

void TokenCounts::penalise(std::span<float> logits, const SamplingOptions& o) const {
  for (const auto& [id, times] : times_) {
    if (id >= std::ssize(logits)) continue;
    float& x = logits[static_cast<std::size_t>(id)];
    x = x > 0 ? x / o.repetition_penalty : x * o.repetition_penalty;
    if (times > 0) x -= o.presence_penalty + static_cast<float>(times) * o.frequency_penalty;
  }
}

void Sampler::apply_rules(std::span<float> logits, const SamplingOptions& o, const SamplingState& state) {
  const auto ban = [&](std::int64_t id) {
    if (id < std::ssize(logits)) logits[static_cast<std::size_t>(id)] = kNever;
  };
  for (const auto& [id, bias] : o.logit_bias)
    if (id < std::ssize(logits)) logits[static_cast<std::size_t>(id)] += bias;
  for (const auto id : o.banned_ids) ban(id);
  const auto words = (logits.size() + 31) / 32;
  if (!o.allowed_ids.empty()) {
    mask_.assign(words, 0);
    for (const auto id : o.allowed_ids)
      if (id < std::ssize(logits)) mask_[static_cast<std::size_t>(id) / 32] |= 1u << id % 32;
    apply_mask(logits, mask_);
  }
  if (state.index < static_cast<std::uint64_t>(o.min_tokens)) {
    for (const auto id : o.stop_ids) ban(id);
    if (!o.ignore_eos)
      for (const auto id : state.eos) ban(id);
  }
  if (state.constraint) {
    mask_.assign(words, 0);
    state.constraint->mask(mask_);
    apply_mask(logits, mask_);
  }
  if (state.counts && o.has_penalties()) state.counts->penalise(logits, o);
}

std::int32_t Sampler::sample(std::span<float> logits, const SamplingOptions& o, const SamplingState& state) {
  auto best = largest_of_model(logits);
  if (o.changes_logits() || state.constraint) {
    apply_rules(logits, o, state);
    best = largest_logit(logits);
    require(best >= 0, "generate",
            "the rules for this text leave no token: allow more of them, or let the text end earlier");
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

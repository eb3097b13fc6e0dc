#include "hpcdl/infer/text_rules.h"

namespace hpcdl::infer {

LogitChange& TokenCounts::of(std::int32_t id) {
  const auto [place, fresh] = places_.try_emplace(id, list_.size());
  if (fresh) list_.push_back({.id = id});
  return list_[place->second];
}

void TokenCounts::add_prompt(std::span<const std::int32_t> ids) {
  for (const auto id : ids) of(id);
}

namespace {

/// The tokens that may come next, a bit each. Starts as those of a constraint, or as all.
class Mask {
 public:
  Mask(std::vector<std::uint32_t>& words, std::int64_t vocab) : words_(words), vocab_(vocab) {
    words_.assign(static_cast<std::size_t>(vocab + 31) / 32, ~0u);
  }
  void keep(TokenConstraint& constraint) { constraint.mask(words_); }
  void ban(std::int64_t id) {
    if (id >= 0 && id < vocab_) words_[static_cast<std::size_t>(id) / 32] &= ~(1u << id % 32);
  }
  void keep(std::span<const std::int32_t> ids) {
    std::vector<std::uint32_t> kept(words_.size());
    for (const auto id : ids)
      if (id >= 0 && id < vocab_) kept[static_cast<std::size_t>(id) / 32] |= 1u << id % 32;
    for (std::size_t i = 0; i < kept.size(); ++i) words_[i] &= kept[i];
  }

 private:
  std::vector<std::uint32_t>& words_;
  std::int64_t vocab_;
};

}  // namespace

void set_rules(RowRules& to, const SamplingOptions& o, const SamplingState& state, std::int64_t vocab) {
  to.biases.clear(), to.counts.clear(), to.mask.clear();
  to.penalties = {o.repetition_penalty, o.presence_penalty, o.frequency_penalty};
  for (const auto& [id, bias] : o.logit_bias) to.biases.push_back({.id = id, .bias = bias});
  const bool too_short = state.index < static_cast<std::uint64_t>(o.min_tokens);
  if (state.constraint || too_short || !o.allowed_ids.empty() || !o.banned_ids.empty()) {
    Mask mask(to.mask, vocab);
    if (state.constraint) mask.keep(*state.constraint);
    if (!o.allowed_ids.empty()) mask.keep(o.allowed_ids);
    for (const auto id : o.banned_ids) mask.ban(id);
    for (std::size_t i = 0; too_short && i < o.stop_ids.size(); ++i) mask.ban(o.stop_ids[i]);
    for (std::size_t i = 0; too_short && !o.ignore_eos && i < state.eos.size(); ++i) mask.ban(state.eos[i]);
  }
  if (state.counts && o.has_penalties()) to.counts = state.counts->list();
}

}  // namespace hpcdl::infer

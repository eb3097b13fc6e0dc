#include "hpcdl/infer/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "hpcdl/core/error.h"
#include "hpcdl/rng.h"

namespace hpcdl::infer {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

bool more_likely(const auto& a, const auto& b) { return a.weight != b.weight ? a.weight > b.weight : a.id < b.id; }

/// The index of the largest logit, the first of equal ones. Compares as integers, which compilers vectorise: a
/// vocabulary of 128,256 is read for every token.
std::size_t largest(std::span<const float> logits) {
  constexpr std::int32_t kInfinity = 0x7f800000;
  std::int32_t top = std::numeric_limits<std::int32_t>::min(), size = 0;
  for (const float x : logits) {
    const auto bits = std::bit_cast<std::int32_t>(x), magnitude = bits & 0x7fffffff, sign = bits >> 31;
    top = std::max(top, (magnitude ^ sign) - sign);  // in the order of the floats
    size = std::max(size, magnitude);
  }
  if (size > kInfinity || top >= kInfinity)
    for (std::size_t i = 0; i < logits.size(); ++i)
      require(!(std::isnan(logits[i]) || logits[i] == HUGE_VALF), "generate",
              "the logit of token {} is {}: the weights hold NaN or overflow; check them with `hpcdl inspect --check`",
              i, logits[i]);
  const float value = std::bit_cast<float>(top < 0 ? -top | std::numeric_limits<std::int32_t>::min() : top);
  return static_cast<std::size_t>(std::find(logits.begin(), logits.end(), value) - logits.begin());
}

/// The same, of logits that no rule has changed.
std::size_t largest_of_model(std::span<const float> logits) {
  const auto best = largest(logits);
  require(std::isfinite(logits[best]), "generate",
          "all logits are {}: the weights overflow; check them with `hpcdl inspect --check`", logits[best]);
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

/// The `most` most likely tokens, or all, in any order.
void Sampler::collect(std::span<const float> logits, std::size_t most, double top, double temperature) {
  kept_.clear();
  constexpr std::size_t kHeap = 1024;  // beyond it, a heap costs more than all weights
  if (most < logits.size() && most <= kHeap) {
    const auto before = [](const Candidate& a, const Candidate& b) { return more_likely(a, b); };
    float least = kNever;  // of the tokens in the heap, once it is full; a later equal one is no better
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (kept_.size() == most && logits[i] <= least) continue;
      if (kept_.size() == most) std::pop_heap(kept_.begin(), kept_.end(), before), kept_.pop_back();
      kept_.push_back({static_cast<std::int32_t>(i), logits[i]});
      std::push_heap(kept_.begin(), kept_.end(), before);
      if (kept_.size() == most) least = logits[static_cast<std::size_t>(kept_.front().id)];
    }
    for (auto& c : kept_) c.weight = std::exp((c.weight - top) / temperature);
    return;
  }
  for (std::size_t i = 0; i < logits.size(); ++i)
    kept_.push_back({static_cast<std::int32_t>(i), std::exp((logits[i] - top) / temperature)});
  if (most >= kept_.size()) return;
  const auto end = kept_.begin() + static_cast<std::ptrdiff_t>(most);
  std::nth_element(kept_.begin(), end, kept_.end(), more_likely<Candidate, Candidate>);
  kept_.erase(end, kept_.end());
}

double Sampler::total() const {
  double sum = 0;
  for (const auto& c : kept_) sum += c.weight;
  return sum;
}

/// Keeps the tokens that come first, until their weights reach `share` of all, and sorts them. Few tokens often suffice,
/// so that only as many are sorted.
template <class Before> void Sampler::keep_first(double share, Before before) {
  const double enough = share * total();
  std::size_t begin = 0, end = std::min<std::size_t>(128, kept_.size());
  const auto at = [&](std::size_t i) { return kept_.begin() + static_cast<std::ptrdiff_t>(i); };
  for (double sum = 0; begin < kept_.size(); end = std::min(4 * end, kept_.size())) {
    if (end < kept_.size()) std::nth_element(at(begin), at(end), kept_.end(), before);
    std::sort(at(begin), at(end), before);
    for (; begin < end; ++begin) {
      if (begin > 0 && sum >= enough) return kept_.resize(begin);
      sum += kept_[begin].weight;
    }
  }
}

void Sampler::keep_typical(double share) {
  const double sum = total();
  double entropy = 0;
  for (const auto& c : kept_)
    if (c.weight > 0) entropy -= c.weight / sum * std::log(c.weight / sum);
  const auto distance = [&](const Candidate& c) { return std::abs(-std::log(c.weight / sum) - entropy); };
  keep_first(share, [&](const Candidate& a, const Candidate& b) {
    const double x = distance(a), y = distance(b);
    return x != y ? x < y : a.id < b.id;
  });
}

std::int32_t Sampler::sample(std::span<float> logits, const SamplingOptions& o, const SamplingState& state) {
  auto best = largest_of_model(logits);
  if (o.changes_logits() || state.constraint) {
    apply_rules(logits, o, state);
    best = largest(logits);
    require(std::isfinite(logits[best]), "generate",
            "the rules for this text leave no token: allow more of them, or let the text end earlier");
  }
  if (o.is_greedy()) return static_cast<std::int32_t>(best);

  collect(logits, o.top_k > 0 ? static_cast<std::size_t>(o.top_k) : logits.size(), logits[best], o.temperature);
  if (o.top_p < 1) keep_first(o.top_p, more_likely<Candidate, Candidate>);
  if (o.min_p > 0) std::erase_if(kept_, [&](const Candidate& c) { return c.weight < o.min_p; });  // the best one has 1
  if (o.typical_p < 1) keep_typical(o.typical_p);
  const auto by_id = [](const Candidate& a, const Candidate& b) { return a.id < b.id; };
  if (o.top_p == 1 && !std::is_sorted(kept_.begin(), kept_.end(), by_id)) std::sort(kept_.begin(), kept_.end(), by_id);
  const auto bits = Rng{o.seed, 0x5a}.block(state.index);
  double left = (bits[0] + bits[1] * 0x1p-32) * 0x1p-32 * total();
  for (const auto& c : kept_)
    if ((left -= c.weight) < 0) return c.id;
  return kept_.back().id;
}

Token Sampler::logprobs(std::span<const float> logits, std::int32_t id, int most) {
  const double top = logits[largest_of_model(logits)];
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - top);
  const double all = top + std::log(sum);
  const auto of = [&](std::int32_t token) { return static_cast<float>(logits[static_cast<std::size_t>(token)] - all); };
  Token t{.id = id, .logprob = of(id), .top = {}};
  if (most <= 0) return t;
  collect(logits, std::min(static_cast<std::size_t>(most), logits.size()), top, 1);
  std::sort(kept_.begin(), kept_.end(), more_likely<Candidate, Candidate>);
  for (const auto& c : kept_) t.top.push_back({c.id, of(c.id)});
  return t;
}

}  // namespace hpcdl::infer

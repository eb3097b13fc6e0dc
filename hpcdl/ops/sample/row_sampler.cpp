#include "hpcdl/ops/sample/row_sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "hpcdl/rng.h"

namespace hpcdl {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

bool more_likely(const RowSampler::Candidate& a, const RowSampler::Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
}

}  // namespace

/// Compares as integers, which compilers vectorise: a vocabulary of 128,256 is read for every token.
std::int64_t largest_logit(std::span<const float> logits) {
  constexpr std::int32_t kInfinity = 0x7f800000;
  std::int32_t top = std::numeric_limits<std::int32_t>::min(), size = 0;
  for (const float x : logits) {
    const auto bits = std::bit_cast<std::int32_t>(x), magnitude = bits & 0x7fffffff, sign = bits >> 31;
    top = std::max(top, (magnitude ^ sign) - sign);  // in the order of the floats
    size = std::max(size, magnitude);
  }
  const auto place = [&](auto at) { return std::find_if(logits.begin(), logits.end(), at) - logits.begin(); };
  if (size > kInfinity || top >= kInfinity) return -1 - place([](float x) { return std::isnan(x) || x == HUGE_VALF; });
  const float value = std::bit_cast<float>(top < 0 ? -top | std::numeric_limits<std::int32_t>::min() : top);
  return value == kNever ? kNoToken : place([&](float x) { return x == value; });
}

/// The `most` most likely tokens, or all, in any order.
void RowSampler::collect(std::span<const float> logits, std::size_t most, double top, double temperature) {
  kept_.clear();
  constexpr std::size_t kHeap = 1024;  // beyond it, a heap costs more than all weights
  if (most < logits.size() && most <= kHeap) {
    float least = kNever;  // of the tokens in the heap, once it is full; a later equal one is no better
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (kept_.size() == most && logits[i] <= least) continue;
      if (kept_.size() == most) std::pop_heap(kept_.begin(), kept_.end(), more_likely), kept_.pop_back();
      kept_.push_back({static_cast<std::int32_t>(i), logits[i]});
      std::push_heap(kept_.begin(), kept_.end(), more_likely);
      if (kept_.size() == most) least = logits[static_cast<std::size_t>(kept_.front().id)];
    }
    for (auto& c : kept_) c.weight = std::exp((c.weight - top) / temperature);
    return;
  }
  kept_.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double x = (logits[i] - top) / temperature;
    kept_[i] = {static_cast<std::int32_t>(i), x < -50 ? 0 : std::exp(x)};  // less than a draw can tell from 0
  }
  if (most >= kept_.size()) return;
  const auto end = kept_.begin() + static_cast<std::ptrdiff_t>(most);
  std::nth_element(kept_.begin(), end, kept_.end(), more_likely);
  kept_.erase(end, kept_.end());
}

double RowSampler::total() const {
  double sum = 0;
  for (const auto& c : kept_) sum += c.weight;
  return sum;
}

/// Keeps the tokens that come first, until their weights reach `share` of all, and sorts them. Few tokens often suffice,
/// so that only as many are sorted.
template <class Before> void RowSampler::keep_first(double share, Before before) {
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

void RowSampler::keep_typical(double share) {
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

std::int32_t RowSampler::sample(std::span<const float> logits, std::int64_t best, const SampleRule& r) {
  if (r.temperature == 0) return static_cast<std::int32_t>(best);
  const auto most = r.top_k > 0 ? static_cast<std::size_t>(r.top_k) : logits.size();
  collect(logits, most, logits[static_cast<std::size_t>(best)], r.temperature);
  if (r.top_p < 1) keep_first(r.top_p, more_likely);
  if (r.min_p > 0) std::erase_if(kept_, [&](const Candidate& c) { return c.weight < r.min_p; });
  if (r.typical_p < 1) keep_typical(r.typical_p);
  const auto by_id = [](const Candidate& a, const Candidate& b) { return a.id < b.id; };
  if (r.top_p == 1 && !std::is_sorted(kept_.begin(), kept_.end(), by_id)) std::sort(kept_.begin(), kept_.end(), by_id);
  const auto bits = Rng{r.seed, 0x5a}.block(r.index);
  double left = (bits[0] + bits[1] * 0x1p-32) * 0x1p-32 * total();
  for (const auto& c : kept_)
    if ((left -= c.weight) < 0) return c.id;
  return kept_.back().id;
}

}  // namespace hpcdl

#include "hpcdl/infer/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/rng.h"

namespace hpcdl::infer {
namespace {

struct Candidate {
  int id;
  double weight;  // unnormalised probability
};

bool more_likely(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
}

/// Keeps the shortest prefix of a sorted list whose weights reach `share` of their sum.
void keep_nucleus(std::vector<Candidate>& sorted, double share) {
  double total = 0, sum = 0;
  for (const auto& c : sorted) total += c.weight;
  std::size_t n = 0;
  while (n < sorted.size() && (n == 0 || sum < share * total)) sum += sorted[n++].weight;
  sorted.resize(n);
}

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

}  // namespace

void SamplingOptions::check() const {
  if (!(temperature >= 0 && std::isfinite(temperature)))
    fail_usage("generate", "temperature must be 0 (greedy) or more, and finite, got {}", temperature);
  if (top_k < 0) fail_usage("generate", "top-k must be 0 (all) or more, got {}", top_k);
  if (!(top_p > 0 && top_p <= 1)) fail_usage("generate", "top-p must lie in (0, 1], got {}", top_p);
}

int sample(std::span<const float> logits, const SamplingOptions& options, std::uint64_t index) {
  const int best = static_cast<int>(largest(logits));
  const double top = logits[static_cast<std::size_t>(best)];
  require(std::isfinite(top), "generate",
          "all logits are {}: the weights overflow; check them with `hpcdl inspect --check`", top);
  if (options.is_greedy()) return best;

  std::vector<Candidate> all(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i)
    all[i] = {static_cast<int>(i), std::exp((logits[i] - top) / static_cast<double>(options.temperature))};
  if (options.top_k > 0 && static_cast<std::size_t>(options.top_k) < all.size()) {
    std::nth_element(all.begin(), all.begin() + options.top_k, all.end(), more_likely);
    all.resize(static_cast<std::size_t>(options.top_k));
  }
  if (options.top_p < 1) {
    std::sort(all.begin(), all.end(), more_likely);
    keep_nucleus(all, options.top_p);
  } else {
    std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  }
  double total = 0;
  for (const auto& c : all) total += c.weight;
  const auto bits = Rng{options.seed, 0x5a}.block(index);
  double left = (bits[0] + bits[1] * 0x1p-32) * 0x1p-32 * total;
  for (const auto& c : all)
    if ((left -= c.weight) < 0) return c.id;
  return all.back().id;
}

}  // namespace hpcdl::infer

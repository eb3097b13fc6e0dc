#include "hpcdl/ops/logprobs/row_logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace hpcdl {
namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();

/// The tokens with the largest logits, in `to` as a heap whose top is the least of them, then in their order.
void take_largest(std::span<TokenLogprob> to, std::span<const float> logits) {
  const auto larger = [](const TokenLogprob& a, const TokenLogprob& b) {
    return a.logprob != b.logprob ? a.logprob > b.logprob : a.id < b.id;
  };
  const auto first = to.begin(), last = first + static_cast<std::ptrdiff_t>(std::min(to.size(), logits.size()));
  std::fill(last, to.end(), TokenLogprob{-1, kImpossible});
  if (first == last) return;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const TokenLogprob t{static_cast<std::int32_t>(i), logits[i]};
    const auto filled = first + static_cast<std::ptrdiff_t>(i);
    if (filled < last) {
      *filled = t;
      std::push_heap(first, filled + 1, larger);
    } else if (t.logprob > first->logprob) {  // a later equal one is no better
      std::pop_heap(first, last, larger);
      *(last - 1) = t;
      std::push_heap(first, last, larger);
    }
  }
  std::sort_heap(first, last, larger);
}

}  // namespace

void write_logprobs(std::span<TokenLogprob> to, std::span<const float> logits, std::int64_t best, std::int32_t id) {
  const double top = logits[static_cast<std::size_t>(best)];
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - top);
  const double all = top + std::log(sum);
  to[0] = {id, logits[static_cast<std::size_t>(id)]};
  take_largest(to.subspan(1), logits);
  for (auto& t : to) t.logprob = static_cast<float>(t.logprob - all);
}

}  // namespace hpcdl

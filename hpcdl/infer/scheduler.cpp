#include "hpcdl/infer/scheduler.h"

#include <algorithm>
#include <bit>

namespace hpcdl::infer {

std::int64_t next_chunk(std::int64_t tokens) {
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(std::min(tokens, kLargestChunk))));
}

Schedule schedule(const Queues& queues, std::span<const std::int64_t> prompts, const Limits& limits) {
  Schedule s;
  std::vector<std::int64_t> left(queues.running.begin(), queues.running.end());
  for (std::int64_t pages = queues.free_pages;
       s.admitted < queues.waiting.size() && std::ssize(left) < limits.sequences; ++s.admitted) {
    pages -= queues.waiting[s.admitted];
    if (pages < 0) break;  // a later one that fits must wait, too, or a long text might wait for ever
    left.push_back(prompts[s.admitted]);
  }
  std::int64_t budget = limits.budget;
  for (std::size_t i = 0; i < left.size(); ++i)
    if (left[i] == 0) s.continuing.push_back(i), --budget;
  for (std::size_t i = 0; i < left.size(); ++i)
    while (left[i] > 0) {
      const auto chunk = next_chunk(left[i]);
      if (chunk > budget) return s;
      s.chunks.push_back({i, chunk});
      left[i] -= chunk, budget -= chunk;
    }
  return s;
}

}  // namespace hpcdl::infer

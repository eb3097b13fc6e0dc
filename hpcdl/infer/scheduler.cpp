#include "hpcdl/infer/scheduler.h"

#include <algorithm>

#include "hpcdl/ops/kv_write/pages.h"

namespace hpcdl::infer {

Schedule schedule(const Queues& queues, const Limits& limits) {
  Schedule s;
  const auto& running = queues.running;
  auto budget = limits.budget, available = queues.available_pages;
  std::int64_t singles = 0;  // that are not scheduled yet: prompts leave a token for each
  std::int64_t growing = 0;  // texts that may need further pages
  for (const auto& t : running) singles += t.pending == 1, growing += t.later > 0;
  bool waits = false;         // a text that there are no pages for
  std::int64_t promised = 0;  // pages for the rest of prompts that have begun
  std::size_t last = running.size();
  for (std::size_t i = 0; i < last; ++i) {
    const auto& t = running[i];
    singles -= t.pending == 1;
    auto tokens = std::min({t.pending, t.most, budget - singles});
    if (tokens <= 0) continue;
    const auto needed = [&] { return pages_for(t.done + tokens) - t.pages; };
    while (needed() > available && last > i + 1) {
      available += running[--last].own;
      singles -= running[last].pending == 1;
      ++s.preempted;
    }
    if (needed() > available) {  // the pages are with more important texts
      waits = true;
      tokens = (t.pages + available) * kPageTokens - t.done;
      if (tokens <= 0) continue;
    }
    available -= needed();
    promised += pages_for(t.done + t.pending) - pages_for(t.done + tokens);
    s.chunks.push_back({i, tokens});
    budget -= tokens;
  }
  if (s.preempted > 0 || waits) return s;
  // Running texts soon need pages; without some in reserve, the one that begins would be preempted again.
  available -= promised;
  auto count = std::ssize(running);
  for (const auto& t : queues.waiting) {
    if (count >= limits.sequences || budget <= 0) break;
    if (t.pages > available - (growing + 3) / 4)
      break;  // a later one that fits must wait, too, or a long text might for ever
    const auto tokens = std::min({t.pending, t.most, budget});
    s.chunks.push_back({running.size() + s.admitted++, tokens});
    available -= t.pages, budget -= tokens, ++count, growing += t.later > 0;
  }
  return s;
}

}  // namespace hpcdl::infer

#include "hpcdl/infer/scheduler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "hpcdl/ops/kv_write/pages.h"

namespace hpcdl::infer {

namespace {

constexpr std::int64_t kLeastOfPrompts = 32;  // tokens of prompts in a step, whatever the deadlines
constexpr std::int64_t kShareOfLate = 8;      // of the tokens of prompts, one in so many is for the first late text
constexpr double kShareOfLimit = 0.9;         // that a step may take, since steps vary

/// Pages that running texts soon need. Without some in reserve, a text that begins would be preempted again.
std::int64_t reserve(std::int64_t growing) { return (growing + 3) / 4; }

/// The tokens that each text may have at most in this step.
struct Shares {
  std::vector<std::int64_t> running, waiting;
};

/// Tokens of prompts beside texts that continue, so that these get theirs in time.
std::int64_t budget_of_prompts(const Limits& limits, std::int64_t singles) {
  const auto left = limits.budget - singles;
  if (singles == 0 || limits.deadlines.between_tokens == 0) return left;
  const auto in_time =
      limits.cost.tokens_within(kShareOfLimit * limits.deadlines.between_tokens, limits.budget) - singles;
  return std::min(left, std::max(in_time, kLeastOfPrompts));
}

/// How long each token of prompts takes, all of which get as many in a step as they can.
double seconds_per_token(const Limits& limits, std::int64_t singles) {
  const auto tokens = budget_of_prompts(limits, singles);
  return limits.cost.seconds(tokens + singles) / static_cast<double>(std::max<std::int64_t>(tokens, 1));
}

Shares shares_by_urgency(const Queues& q, const Limits& limits, double now) {
  const auto singles = std::ranges::count(q.running, std::int64_t{1}, &Queues::Running::pending);
  std::int64_t growing = 0, pages = q.available_pages, count = std::ssize(q.running);
  Shares shares{.running = std::vector<std::int64_t>(q.running.size(), 1),
                .waiting = std::vector<std::int64_t>(q.waiting.size())};
  std::vector<Prompt> prompts;
  std::vector<std::int64_t*> share;
  std::vector<std::int64_t> most;
  const auto add = [&](const auto& text, std::int64_t& to) {
    to = 0;
    prompts.push_back({.pending = text.pending, .due = text.due});
    share.push_back(&to), most.push_back(std::min(text.pending, text.most));
  };
  for (std::size_t i = 0; i < q.running.size(); ++i) {
    const auto& t = q.running[i];
    growing += t.later > 0, pages -= std::max<std::int64_t>(0, pages_for(t.done + t.pending) - t.pages);
    if (t.pending > 1) add(t, shares.running[i]);
  }
  const auto begun = prompts.size();
  for (std::size_t i = 0; i < q.waiting.size() && count < limits.sequences; ++i, ++count) {
    if (q.waiting[i].pages > pages - reserve(growing)) break;
    pages -= q.waiting[i].pages, growing += q.waiting[i].later > 0;
    add(q.waiting[i], shares.waiting[i]);
  }
  const auto urgency = by_urgency(prompts, limits, singles, now);
  auto budget = budget_of_prompts(limits, singles);
  const auto give = [&](std::size_t i, std::int64_t tokens) {
    const auto more = std::clamp(tokens, std::int64_t{0}, most[i] - *share[i]);
    *share[i] += more, budget -= more;
  };
  const bool any_late = urgency.in_time < urgency.order.size();
  if (any_late) give(urgency.order[urgency.in_time], budget / kShareOfLate);
  for (std::size_t i = 0; i < urgency.order.size(); ++i) {
    const auto at = urgency.order[i];
    if (i <= urgency.in_time || at < begun)
      give(at, budget);  // late ones begin one by one, or they would fill the batch
  }
  return shares;
}

Schedule schedule_within(const Queues& queues, const Limits& limits, const Shares* shares) {
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
    if (shares) tokens = std::min(tokens, shares->running[i]);
    if (tokens <= 0) {
      promised += std::max<std::int64_t>(0, pages_for(t.done + t.pending) - t.pages);
      continue;
    }
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
  available -= promised;
  auto count = std::ssize(running);
  for (std::size_t i = 0; i < queues.waiting.size(); ++i) {
    const auto& t = queues.waiting[i];
    if (count >= limits.sequences || budget <= 0) break;
    if (t.pages > available - reserve(growing))
      break;  // a later one that fits must wait, too, or a long text might for ever
    auto tokens = std::min({t.pending, t.most, budget});
    if (shares) tokens = std::min(tokens, shares->waiting[i]);
    if (tokens <= 0) break;
    s.chunks.push_back({running.size() + s.admitted++, tokens});
    available -= t.pages, budget -= tokens, ++count, growing += t.later > 0;
  }
  return s;
}

}  // namespace

Urgency by_urgency(std::span<const Prompt> prompts, const Limits& limits, std::int64_t singles, double now) {
  const double pace = seconds_per_token(limits, singles);
  const auto longest = [&](std::size_t a, std::size_t b) { return prompts[a].pending < prompts[b].pending; };
  std::vector<std::size_t> by_due(prompts.size()), first, in_time, late;
  std::iota(by_due.begin(), by_due.end(), std::size_t{0});
  std::ranges::stable_sort(by_due, {}, [&](std::size_t i) { return prompts[i].due; });
  double end = now;
  for (const auto i : by_due) {
    const auto seconds = [&](std::size_t p) { return pace * static_cast<double>(prompts[p].pending); };
    end += seconds(i);
    if (prompts[i].due == -kNotDue) {
      first.push_back(i);
      continue;
    }
    in_time.push_back(i);
    if (end <= prompts[i].due) continue;
    const auto removed = std::ranges::max_element(in_time, longest);
    end -= seconds(*removed);
    late.push_back(*removed);
    in_time.erase(removed);
  }
  std::ranges::sort(late);
  Urgency u{.order = std::move(first)};
  u.order.insert(u.order.end(), in_time.begin(), in_time.end());
  u.in_time = u.order.size();
  u.order.insert(u.order.end(), late.begin(), late.end());
  return u;
}

Schedule schedule(const Queues& queues, const Limits& limits, double now) {
  if (!limits.deadlines.any()) return schedule_within(queues, limits, nullptr);
  const auto shares = shares_by_urgency(queues, limits, now);
  auto s = schedule_within(queues, limits, &shares);
  // A text that the shares are kept for may lack pages: others must go on, or it would wait for ever.
  if (s.chunks.empty()) s = schedule_within(queues, limits, nullptr);
  return s;
}

}  // namespace hpcdl::infer

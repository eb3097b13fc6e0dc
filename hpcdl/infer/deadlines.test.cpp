// Deadlines, without a model: the clock advances by the cost of each step.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "hpcdl/infer/scheduler.h"
#include "hpcdl/ops/kv_write/pages.h"
#include "hpcdl/rng.h"

namespace hpcdl::infer {
namespace {

TEST(step_cost, lies_on_the_lines_between_what_was_measured) {
  StepCost cost;
  EXPECT_EQ(cost.seconds(5), 0) << "nothing is known";
  EXPECT_EQ(cost.tokens_within(1e-9, 100), 100);
  cost.add(10, 1);
  EXPECT_EQ(cost.seconds(4), 1);
  EXPECT_EQ(cost.seconds(20), 2);
  cost.add(100, 4);
  EXPECT_DOUBLE_EQ(cost.seconds(40), 2);
  EXPECT_DOUBLE_EQ(cost.seconds(200), 8);
  EXPECT_EQ(cost.tokens_within(2, 1000), 40);
  EXPECT_EQ(cost.tokens_within(2, 30), 30);
  EXPECT_EQ(cost.tokens_within(0.5, 1000), 0);
  for (int i = 0; i < 100; ++i) cost.add(100, 7);
  EXPECT_NEAR(cost.seconds(100), 7, 1e-3) << "later ones count more";
}

TEST(deadlines, put_as_many_prompts_in_time_as_possible) {
  Limits limits{.budget = 100, .deadlines = {.first_token = 1}};
  limits.cost.add(100, 1);  // 10 ms for a token of a prompt
  const Prompt prompts[] = {{.pending = 10, .due = 11},  {.pending = 60, .due = 10.7},    {.pending = 20, .due = 10.8},
                            {.pending = 5, .due = 9},    {.pending = 7, .due = -kNotDue},  // has a token already
                            {.pending = 20, .due = 10.9}};
  const auto u = by_urgency(prompts, limits, 0, 10);
  EXPECT_EQ(u.order, (std::vector<std::size_t>{4, 2, 5, 0, 1, 3})) << "without the longest, three are in time";
  EXPECT_EQ(u.in_time, 4u);
}

TEST(deadlines, let_late_texts_begin_one_by_one) {
  Limits limits{.sequences = 9, .budget = 80, .deadlines = {.first_token = 1}};
  limits.cost.add(100, 1);
  const Queues::Waiting waiting[] = {{.pending = 20, .pages = 1, .due = 10.9},
                                     {.pending = 90, .pages = 2, .due = 4},
                                     {.pending = 90, .pages = 2, .due = 5}};
  const auto s = schedule({{}, waiting, 100}, limits, 10);
  ASSERT_EQ(s.admitted, 2u);
  EXPECT_EQ(s.chunks[0].tokens, 20);
  EXPECT_EQ(s.chunks[1].tokens, 60);
}

TEST(deadlines, bound_the_prompts_beside_texts_that_continue) {
  Limits limits{.sequences = 8, .budget = 1000, .deadlines = {.between_tokens = 0.1}};
  limits.cost.add(10, 0.02), limits.cost.add(500, 1);
  const Queues::Running running[] = {{.done = 9, .pending = 1, .pages = 1, .own = 1}, {.pending = 900}};
  const auto tokens = [&](std::span<const Queues::Running> r) {
    return schedule({r, {}, 100}, limits).chunks.back().tokens;
  };
  EXPECT_EQ(tokens(running), 44) << "a step of 45 tokens takes 0.9 of the limit";
  EXPECT_EQ(tokens({running + 1, 1}), 900) << "no text waits for its next token";
  limits.deadlines.between_tokens = 1e-6;
  EXPECT_EQ(tokens(running), 32) << "prompts go on";
}

TEST(deadlines, do_not_stop_texts_that_lack_pages) {
  const Limits limits{.sequences = 8, .budget = 100, .deadlines = {.first_token = 1}};
  const Queues::Running running[] = {{.pending = 90, .due = 5}};
  const Queues::Waiting waiting[] = {{.pending = 200, .pages = 4, .due = 2}};
  const auto s = schedule({running, waiting, 3}, limits, 1);
  ASSERT_EQ(s.chunks.size(), 1u);
  EXPECT_EQ(s.chunks[0].tokens, 90) << "the more urgent one has no pages";
}

/// A text of the simulation.
struct Text {
  double arrived, first = 0, last = 0;
  std::int64_t prompt, output, done = 0, known = 0, made = 0, pages = 0;
};

struct Outcome {
  double seconds = 0;
  std::int64_t steps = 0, good = 0, ended = 0;
};

class Simulation {
 public:
  Simulation(std::vector<Text> texts, const Deadlines& limits, bool obeys) : texts_(std::move(texts)), slo_(limits) {
    limits_ = {.sequences = 64, .budget = 2048, .deadlines = obeys ? limits : Deadlines{}};
    for (auto& t : texts_) t.known = t.prompt;
  }

  Outcome run() {
    while (outcome_.ended < std::ssize(texts_)) step();
    outcome_.seconds = now_;
    return outcome_;
  }

 private:
  static double seconds(std::int64_t tokens) { return 8e-3 + 2e-5 * static_cast<double>(tokens); }
  double due(const Text& t) const { return t.made > 0 ? -kNotDue : t.arrived + slo_.first_token; }

  void step() {
    for (; next_ < texts_.size() && texts_[next_].arrived <= now_; ++next_) waiting_.push_back(&texts_[next_]);
    if (waiting_.empty() && running_.empty()) now_ = texts_[next_].arrived;
    if (limits_.deadlines.any()) order();
    std::vector<Queues::Running> running;
    std::vector<Queues::Waiting> waiting;
    for (const auto* t : running_)
      running.push_back({.done = t->done,
                         .pending = t->known - t->done,
                         .pages = t->pages,
                         .own = t->pages,
                         .later = pages_for(t->prompt + t->output) - pages_for(t->known),
                         .due = due(*t)});
    for (const auto* t : std::span(waiting_).first(std::min<std::size_t>(waiting_.size(), 32)))
      waiting.push_back({.pending = t->known, .pages = pages_for(t->known + 1), .due = due(*t)});
    const auto s = schedule({running, waiting, available_}, limits_, now_);
    ASSERT_EQ(s.preempted, 0u) << "there are pages enough";
    for (std::size_t i = 0; i < s.admitted; ++i) running_.push_back(waiting_[i]);
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(s.admitted));
    std::int64_t tokens = 0;
    for (const auto& c : s.chunks) tokens += c.tokens;
    ASSERT_LE(tokens, limits_.budget);
    if (tokens == 0) return;
    now_ += seconds(tokens), ++outcome_.steps;
    limits_.cost.add(tokens, seconds(tokens));
    for (const auto& c : s.chunks) take(*running_[c.sequence], c.tokens);
    std::erase_if(running_, [&](Text* t) { return t->made == t->output && end(*t); });
  }

  void order() {
    std::vector<Prompt> prompts;
    for (const auto* t : waiting_) prompts.push_back({.pending = t->known, .due = due(*t)});
    std::vector<Text*> ordered;
    const auto singles = std::ranges::count_if(running_, [](const Text* t) { return t->known - t->done == 1; });
    for (const auto i : by_urgency(prompts, limits_, singles, now_).order) ordered.push_back(waiting_[i]);
    waiting_ = std::move(ordered);
  }

  void take(Text& t, std::int64_t tokens) {
    t.done += tokens;
    const auto more = pages_for(t.done) - t.pages;
    available_ -= more, t.pages += more;
    ASSERT_GE(available_, 0);
    if (t.done < t.known) return;
    ++t.known;
    if (t.made++ == 0) t.first = now_;
    t.last = now_;
  }

  bool end(const Text& t) {
    ++outcome_.ended;
    available_ += t.pages;
    const double between = t.output > 1 ? (t.last - t.first) / static_cast<double>(t.output - 1) : 0;
    outcome_.good += t.first - t.arrived <= slo_.first_token && between <= slo_.between_tokens;
    return true;
  }

  std::vector<Text> texts_;
  Deadlines slo_;
  Limits limits_;
  std::vector<Text*> waiting_, running_;
  std::size_t next_ = 0;
  std::int64_t available_ = 100000;
  double now_ = 0;
  Outcome outcome_;
};

/// Texts whose prompts differ much in length; `rate` a second at random, or all at once.
std::vector<Text> arrivals(std::int64_t count, double rate) {
  const Rng rng{5, 1};
  std::uint64_t draws = 0;
  const auto uniform = [&] { return (static_cast<double>(rng.below(draws++, 1 << 30)) + 0.5) / (1 << 30); };
  std::vector<Text> list;
  double time = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (rate > 0) time -= std::log(uniform()) / rate;
    list.push_back({.arrived = time,
                    .prompt = static_cast<std::int64_t>(32 * std::exp2(8 * uniform())),
                    .output = static_cast<std::int64_t>(16 * std::exp2(3 * uniform()))});
  }
  return list;
}

TEST(deadlines, keep_more_texts_in_time_than_the_order_of_arrival) {
  constexpr Deadlines kLimits{.first_token = 0.25, .between_tokens = 0.025};
  constexpr std::int64_t kTexts = 48000;
  const auto all = Simulation(arrivals(kTexts, 0), kLimits, false).run();
  const double saturation = static_cast<double>(kTexts) / all.seconds;
  const auto texts = arrivals(kTexts, 0.8 * saturation);
  const auto by_arrival = Simulation(texts, kLimits, false).run();
  const auto by_slack = Simulation(texts, kLimits, true).run();
  EXPECT_GE(by_slack.steps, 100000);
  const auto rate = [](const Outcome& o) { return static_cast<double>(o.good) / o.seconds; };
  EXPECT_GE(rate(by_slack), 1.3 * rate(by_arrival));
}

}  // namespace
}  // namespace hpcdl::infer

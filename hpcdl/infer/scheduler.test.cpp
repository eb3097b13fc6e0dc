#include "hpcdl/infer/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "hpcdl/ops/kv_write/pages.h"
#include "hpcdl/rng.h"

namespace hpcdl::infer {
namespace {

using Running = Queues::Running;
using Waiting = Queues::Waiting;

std::vector<std::int64_t> tokens_of(const Schedule& s, std::size_t sequences) {
  std::vector<std::int64_t> list(sequences);
  for (const auto& c : s.chunks) list[c.sequence] += c.tokens;
  return list;
}

TEST(scheduler, gives_prompts_what_new_tokens_leave) {
  const Running running[] = {{.done = 0, .pending = 500},
                             {.done = 9, .pending = 1, .pages = 1, .own = 1},
                             {.done = 9, .pending = 1, .pages = 1, .own = 1}};
  const Waiting waiting[] = {{.pending = 10, .pages = 1}};
  const auto s = schedule({running, waiting, 100}, {.sequences = 8, .budget = 100});
  EXPECT_EQ(tokens_of(s, 4), (std::vector<std::int64_t>{98, 1, 1, 0})) << "no token is left for a fourth text";
  EXPECT_EQ(tokens_of(schedule({running, waiting, 100}, {.sequences = 8, .budget = 507}), 4),
            (std::vector<std::int64_t>{500, 1, 1, 5}));
}

TEST(scheduler, keeps_the_order_of_arrival) {
  const Waiting waiting[] = {{.pending = 300, .pages = 5}, {.pending = 10, .pages = 1}};
  EXPECT_EQ(schedule({{}, waiting, 4}, {.sequences = 4}).admitted, 0u) << "the second must not overtake";
  EXPECT_EQ(schedule({{}, waiting, 5}, {.sequences = 4}).admitted, 1u);
  EXPECT_EQ(schedule({{}, waiting, 7}, {.sequences = 4}).admitted, 2u) << "a page of reserve for the first";
  EXPECT_EQ(schedule({{}, waiting, 7}, {.sequences = 1}).admitted, 1u);
}

TEST(scheduler, preempts_the_last_texts_where_pages_run_out) {
  const Running full{.done = 64, .pending = 1, .pages = 1, .own = 1}, shares{.done = 64, .pages = 1, .own = 0};
  const Running three[] = {full, full, full};
  const auto one = schedule({three, {}, 1}, {.sequences = 4});
  EXPECT_EQ(one.preempted, 1u);
  EXPECT_EQ(tokens_of(one, 3), (std::vector<std::int64_t>{1, 1, 0}));
  const Running two[] = {full, shares, full};
  const auto both = schedule({two, {}, 0}, {.sequences = 4});
  EXPECT_EQ(both.preempted, 1u) << "the page of the third is enough for the first";
  EXPECT_EQ(tokens_of(both, 3), (std::vector<std::int64_t>{1, 0, 0})) << "the second waits for a page";
  const Waiting waiting[] = {{.pending = 1, .pages = 0}};
  EXPECT_EQ(schedule({two, waiting, 0}, {.sequences = 4}).admitted, 0u) << "no other may begin meanwhile";
}

/// A text of the simulation, which no model continues.
struct Text {
  std::int64_t number, priority, known, left, done = 0, pages = 0, stalled = 0;
  bool important_than(const Text& o) const {
    return priority != o.priority ? priority > o.priority : number < o.number;
  }
};
using Texts = std::vector<std::unique_ptr<Text>>;

void insert(Texts& list, std::unique_ptr<Text> t) {
  const auto at = std::ranges::find_if(list, [&](const auto& other) { return t->important_than(*other); });
  list.insert(at, std::move(t));
}

// A simulation without a model: no step exceeds its limits, no page is taken twice, the most important text always
// continues, and every text ends.
TEST(scheduler, ends_every_text_within_its_limits) {
  const Limits limits{.sequences = 16, .budget = 96};
  constexpr std::int64_t kPages = 40, kSteps = 100000;
  const Rng rng{7, 1};
  Texts waiting, running;
  std::int64_t free_pages = kPages, arrived = 0, ended = 0, preemptions = 0;
  std::uint64_t draws = 0;
  const auto draw = [&](std::uint64_t below) { return static_cast<std::int64_t>(rng.below(draws++, below)); };
  for (std::int64_t step = 0; step < kSteps || !waiting.empty() || !running.empty(); ++step) {
    ASSERT_LT(step, 3 * kSteps) << "texts never end";
    if (step < kSteps && waiting.size() < 50 && draw(20) == 0)
      insert(waiting, std::make_unique<Text>(Text{
                          .number = arrived++, .priority = draw(3), .known = 1 + draw(1000), .left = 1 + draw(400)}));
    std::vector<Running> r;
    std::vector<Waiting> w;
    for (const auto& t : running)
      r.push_back({.done = t->done, .pending = t->known - t->done, .pages = t->pages, .own = t->pages});
    for (const auto& t : waiting) w.push_back({.pending = t->known, .pages = pages_for(t->known + 1)});
    const auto s = schedule({r, w, free_pages}, limits);
    ASSERT_TRUE(s.preempted == 0 || s.admitted == 0);
    std::vector<Text*> texts;
    for (const auto& t : running) texts.push_back(t.get());
    for (std::size_t i = 0; i < s.preempted; ++i, ++preemptions) {
      auto t = std::move(running.back());
      running.pop_back();
      free_pages += t->pages;
      t->pages = t->done = 0;
      insert(waiting, std::move(t));
    }
    for (std::size_t i = 0; i < s.admitted; ++i) {
      texts.push_back(waiting.front().get());
      insert(running, std::move(waiting.front()));
      waiting.erase(waiting.begin());
    }
    ASSERT_LE(std::ssize(running), limits.sequences);
    std::int64_t tokens = 0;
    const auto* first = running.empty() ? nullptr : running.front().get();
    bool first_continues = running.empty();
    for (auto& t : running) ++t->stalled;
    for (const auto& c : s.chunks) {
      auto& t = *texts[c.sequence];
      ASSERT_GT(c.tokens, 0);
      tokens += c.tokens;
      t.done += c.tokens;
      ASSERT_LE(t.done, t.known);
      const auto more = pages_for(t.done) - t.pages;
      ASSERT_GE(more, 0);
      free_pages -= more, t.pages += more;
      ASSERT_GE(free_pages, 0);
      first_continues = first_continues || &t == first;
      if (t.done == t.known) ++t.known, --t.left;
      t.stalled = 0;
    }
    ASSERT_TRUE(first_continues) << "the most important text waits";
    ASSERT_LE(tokens, limits.budget);
    for (const auto& t : running) ASSERT_LT(t->stalled, 1000) << "a text is starved";
    for (std::size_t i = 1; i < running.size(); ++i) ASSERT_TRUE(running[i - 1]->important_than(*running[i]));
    std::erase_if(running, [&](const auto& t) {
      if (t->left > 0) return false;
      free_pages += t->pages;
      return ++ended, true;
    });
  }
  EXPECT_EQ(ended, arrived);
  EXPECT_GT(ended, 1000);
  EXPECT_GT(preemptions, 100) << "the simulation must be short of pages";
  EXPECT_EQ(free_pages, kPages);
}

}  // namespace
}  // namespace hpcdl::infer

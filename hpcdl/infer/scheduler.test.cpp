#include "hpcdl/infer/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <numeric>

#include "hpcdl/rng.h"

namespace hpcdl::infer {
namespace {

TEST(scheduler, divides_a_prompt_into_the_largest_powers_of_two) {
  const std::int64_t pages[] = {3}, prompts[] = {64 + 64 + 32 + 4 + 1};
  const auto s = schedule({pages, {}, 3}, prompts, {.sequences = 1, .budget = 512});
  EXPECT_EQ(s.admitted, 1u);
  std::vector<std::int64_t> chunks;
  for (const auto& c : s.chunks) chunks.push_back(c.tokens);
  EXPECT_EQ(chunks, (std::vector<std::int64_t>{64, 64, 32, 4, 1}));
}

TEST(scheduler, keeps_the_order_of_arrival) {
  const std::int64_t pages[] = {5, 1}, prompts[] = {10, 10};
  EXPECT_EQ(schedule({pages, {}, 4}, prompts, {.sequences = 4}).admitted, 0u) << "the second must not overtake";
  EXPECT_EQ(schedule({pages, {}, 5}, prompts, {.sequences = 4}).admitted, 1u);
  EXPECT_EQ(schedule({pages, {}, 6}, prompts, {.sequences = 4}).admitted, 2u);
  EXPECT_EQ(schedule({pages, {}, 6}, prompts, {.sequences = 1}).admitted, 1u);
}

// A simulation without a model: no step exceeds its limits, every sequence ends, and its pages return.
TEST(scheduler, ends_every_sequence_within_its_limits) {
  struct Sequence {
    std::int64_t pages, prompt, left, waited;
  };
  const Limits limits{.sequences = 16, .budget = 96};
  constexpr std::int64_t kPages = 40;
  const Rng rng{7, 1};
  std::deque<Sequence> waiting;
  std::vector<Sequence> running;
  std::int64_t free_pages = kPages, arrived = 0, ended = 0;
  std::uint64_t draws = 0;
  const auto draw = [&](std::uint64_t below) { return static_cast<std::int64_t>(rng.below(draws++, below)); };
  for (int step = 0; step < 100000 || !waiting.empty() || !running.empty(); ++step) {
    ASSERT_LT(step, 200000) << "sequences never end";
    if (step < 100000 && waiting.size() < 50 && draw(4) == 0) {
      const std::int64_t prompt = 1 + draw(1000), tokens = 1 + draw(200);
      waiting.push_back({(prompt + tokens + 63) / 64, prompt, tokens, 0});
      ++arrived;
    }
    std::vector<std::int64_t> pages, prompts, left;
    for (const auto& q : waiting) pages.push_back(q.pages), prompts.push_back(q.prompt);
    for (const auto& q : running) left.push_back(q.prompt);
    const auto s = schedule({pages, left, free_pages}, prompts, limits);
    ASSERT_FALSE(s.empty() && !(waiting.empty() && running.empty())) << "nothing is done, but sequences are there";
    for (std::size_t i = 0; i < s.admitted; ++i) {
      free_pages -= waiting.front().pages;
      running.push_back(waiting.front());
      waiting.pop_front();
    }
    ASSERT_GE(free_pages, 0);
    ASSERT_LE(std::ssize(running), limits.sequences);
    std::int64_t tokens = std::ssize(s.continuing);
    for (const auto i : s.continuing) {
      ASSERT_EQ(running[i].prompt, 0);
      --running[i].left;
    }
    for (const auto& c : s.chunks) {
      tokens += c.tokens;
      running[c.sequence].prompt -= c.tokens;
      ASSERT_GE(running[c.sequence].prompt, 0);
      if (running[c.sequence].prompt == 0) --running[c.sequence].left;  // the last chunk gives a token
    }
    ASSERT_LE(tokens, limits.budget);
    for (auto& q : running) ASSERT_LT(q.waited = q.prompt > 0 ? q.waited + 1 : 0, 1000) << "a prompt is starved";
    std::erase_if(running, [&](const Sequence& q) {
      if (q.prompt > 0 || q.left > 0) return false;
      free_pages += q.pages;
      return ++ended, true;
    });
  }
  EXPECT_EQ(ended, arrived);
  EXPECT_GT(ended, 1000);
  EXPECT_EQ(free_pages, kPages);
}

}  // namespace
}  // namespace hpcdl::infer

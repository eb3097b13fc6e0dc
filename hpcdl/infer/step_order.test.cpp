#include "hpcdl/infer/step_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "hpcdl/core/error.h"

namespace hpcdl::infer {
namespace {

TEST(step_order, bytes_hold_all_of_a_step) {
  const std::vector<std::int32_t> all{5, 6, 7}, window{-1, 2, 3}, other{9}, tokens{1, 2, 3, 4}, wanted{-1, 8};
  const std::vector<BatchRow> rows{
      {.pages = {all, window}, .length = 130, .tokens = 3, .read = 2, .adapter = 4, .left = 64},
      {.pages = {other}, .length = 7}};
  const std::vector<SampleRule> rules{{.seed = 4, .temperature = 0.5F}, {.seed = 5}};
  const std::vector<RowRules> changes{{},
                                      {.penalties = {1.5F, 0.25F, -1},
                                       .biases = {{.id = 3, .bias = 2}},
                                       .counts = {{.id = 8, .times = 2}},
                                       .mask = {7, 9}}};
  const BatchLayout layout{.tokens = 4,
                           .sequences = 2,
                           .pages = 3,
                           .window_pages = 8,
                           .rows = 2,
                           .vocab = 40,
                           .adapters = true,
                           .logprobs = 5};
  const auto bytes = to_bytes(
      {.layout = layout, .rows = rows, .tokens = tokens, .rules = rules, .changes = changes, .wanted = wanted});
  const ReadStep read(bytes);
  const auto& s = read.step();
  EXPECT_EQ(s.layout, layout);
  EXPECT_FALSE(s.continues);
  EXPECT_TRUE(std::ranges::equal(s.tokens, tokens));
  EXPECT_TRUE(std::ranges::equal(s.wanted, wanted));
  ASSERT_EQ(s.rows.size(), 2u);
  EXPECT_TRUE(std::ranges::equal(s.rows[0].pages.all, all));
  EXPECT_TRUE(std::ranges::equal(s.rows[0].pages.window, window));
  EXPECT_EQ(s.rows[0].length, 130);
  EXPECT_EQ(s.rows[0].read, 2);
  EXPECT_EQ(s.rows[0].left, 64);
  EXPECT_EQ(s.rows[0].adapter, 4);
  EXPECT_EQ(s.rows[1].adapter, -1);
  EXPECT_TRUE(std::ranges::equal(s.rows[1].pages.all, other));
  EXPECT_TRUE(s.rows[1].pages.window.empty());
  EXPECT_EQ(s.rules[0].temperature, 0.5F);
  ASSERT_EQ(s.changes.size(), 2u);
  EXPECT_FALSE(s.changes[0].any());
  EXPECT_EQ(s.changes[1].penalties.presence, 0.25F);
  EXPECT_EQ(s.changes[1].biases[0].id, 3);
  EXPECT_EQ(s.changes[1].counts[0].times, 2);
  EXPECT_EQ(s.changes[1].mask, changes[1].mask);
  for (const std::size_t cut : {std::size_t{0}, std::size_t{20}, bytes.size() / 2, bytes.size() - 8})
    EXPECT_THROW(ReadStep(std::span(bytes).first(cut)), Error) << cut;
}

}  // namespace
}  // namespace hpcdl::infer

#include "hpcdl/pipe/generate.h"

#include <gtest/gtest.h>

#include "hpcdl/error.h"
#include "hpcdl/pipe/order_file.h"

namespace hpcdl::pipe {
namespace {

std::string order(std::string_view name, const PipeShape& shape) {
  return order_text(make_schedule(schedule_kind(name), shape));
}

TEST(generate, gives_the_orders_of_the_papers) {
  EXPECT_EQ(order("gpipe", {2, 1, 3}), "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n");
  EXPECT_EQ(order("1f1b", {2, 1, 3}), "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
  EXPECT_EQ(order("interleaved", {2, 2, 2}), "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n1F0,1F1,3F0,3B0,3F1,3B1,1B0,1B1\n");
  EXPECT_EQ(order("zero_bubble", {2, 1, 3}),
            "0F0,0F1,0I0,0W0,0F2,0I1,0W1,0I2,0W2\n1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1W2\n");
  EXPECT_EQ(order("zbv", {2, 2, 2}),
            "0F0,0F1,3F0,3I0,3W0,3F1,3I1,3W1,0I0,0W0,0I1,0W1\n1F0,2F0,1F1,2F1,2I0,2W0,1I0,2I1,1I1,1W0,2W1,1W1\n");
}

TEST(generate, deals_the_turns_of_round_robin_to_the_ranks) {
  const auto s = make_schedule(schedule_kind("round_robin"), {2, 1, 3});
  EXPECT_TRUE(s.on_host);
  EXPECT_EQ(order_text(s), "0F0,0F1,1B0,1B1,0F2,1B2\n1F0,1F1,0B0,0B1,1F2,0B2\n");
}

void expect_refused(std::string_view name, const PipeShape& shape, std::string_view words) {
  try {
    make_schedule(schedule_kind(name), shape);
    FAIL() << words;
  } catch (const UsageError& e) {
    EXPECT_NE(std::string_view(e.what()).find(words), std::string_view::npos) << e.what();
  }
}

TEST(generate, refuses_with_what_would_fit) {
  expect_refused("1f1", {2, 1, 4}, "did you mean '1f1b'");
  expect_refused("1f1b", {2, 2, 4},
                 "schedule 1f1b needs --chunks 1, got 2; with --chunks 2 choose one of gpipe, "
                 "interleaved, zbv, round_robin");
  expect_refused("interleaved", {2, 1, 4}, "needs --chunks 2 or more, got 1");
  expect_refused("zbv", {2, 3, 4}, "needs --chunks 2, got 3");
  expect_refused("gpipe", {0, 1, 4}, "--stages: expected 1 to 256, got 0");
  expect_refused("gpipe", {2, 1, 5000}, "--micros: expected 1 to 4096, got 5000");
  expect_refused("gpipe", {256, 64, 65}, "--micros 64 at most");
}

TEST(generate, warns_of_few_micro_batches) {
  EXPECT_EQ(few_micros_warning(4, 4), "");
  EXPECT_NE(few_micros_warning(4, 3).find("use at least 4"), std::string::npos);
}

}  // namespace
}  // namespace hpcdl::pipe

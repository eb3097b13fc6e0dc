#include "hpcdl/parallel/exchange_order.h"

#include <gtest/gtest.h>

#include <deque>

#include "hpcdl/core/error.h"
#include "hpcdl/graph.h"
#include "hpcdl/ops/exchange/exchange.h"
#include "hpcdl/ops/softmax/softmax.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl::parallel {
namespace {

struct Sum {
  std::string axis;
  std::int64_t elements = 8;
};

Program program_of(const MeshShape& shape, const std::vector<Sum>& sums) {
  Graph g({.inference = true});
  for (const auto& [axis, elements] : sums) {
    const Var x = softmax(g.input("x", {{1, elements}, DType::f32}));
    record<AllReduce>({Axis(axis, axis == "dp" ? shape.dp : shape.tp, nullptr)}, x);
  }
  return g.finish().program;
}

/// What a mesh finds whose ranks have these exchanges.
std::string conflict(const MeshShape& shape, const std::vector<std::vector<Sum>>& by_rank) {
  std::deque<Program> programs;
  std::vector<std::vector<NamedProgram>> list;
  for (const auto& sums : by_rank) list.push_back({{"pass", &programs.emplace_back(program_of(shape, sums))}});
  return exchange_conflict(shape, list);
}

TEST(exchange_order, of_ranks_that_agree_has_no_conflict) {
  EXPECT_EQ(conflict({}, {{{"dp"}, {"tp"}}}), "") << "axes of one rank";
  EXPECT_EQ(conflict({.dp = 2}, {{{"dp"}, {"dp", 4}}, {{"dp"}, {"dp", 4}}}), "");
  const std::vector<Sum> both{{"tp"}, {"dp"}, {"tp", 5}};
  EXPECT_EQ(conflict({.dp = 2, .tp = 2}, {both, both, both, both}), "");
  const std::vector<Sum> other{{"dp"}, {"tp"}, {"tp", 5}};  // of both ranks of a group along dp
  EXPECT_EQ(conflict({.dp = 2, .tp = 2}, {both, other, both, other}), "")
      << "one waits for the other, but not for ever";
}

TEST(exchange_order, names_the_first_difference) {
  EXPECT_EQ(
      conflict({.dp = 2}, {{{"dp"}, {"dp", 4}}, {{"dp"}, {"dp", 6}, {"dp", 4}}}),
      "exchange 2 over dp of 2 differs: rank 0: all_reduce of 16 bytes over dp of 2 by \"all_reduce\", record 3 of "
      "the program \"pass\"; rank 1: all_reduce of 24 bytes over dp of 2 by \"all_reduce\", record 3 of the program "
      "\"pass\"");
  EXPECT_EQ(
      conflict({.tp = 2}, {{{"tp"}, {"tp", 4}}, {{"tp"}}}),
      "exchange 2 over tp of 2 differs: rank 0: all_reduce of 16 bytes over tp of 2 by \"all_reduce\", record 3 of "
      "the program \"pass\"; rank 1: none");
  const std::vector<Sum> a{{"tp"}, {"dp"}}, b{{"tp"}, {"dp", 3}};
  const auto text = conflict({.dp = 2, .tp = 2}, {a, a, a, b});
  EXPECT_NE(text.find("over dp of 2 differs: rank 1: "), std::string::npos) << text;
  EXPECT_NE(text.find("; rank 3: "), std::string::npos) << text;
  EXPECT_THROW(conflict({.dp = 2}, {{{"dp"}}}), Error);
}

/// Every group has one order, but rank 0 waits for rank 2, that for 3, that for 1, and that for 0.
TEST(exchange_order, names_ranks_that_wait_in_a_circle) {
  const std::vector<Sum> dp_first{{"dp"}, {"tp"}}, tp_first{{"tp"}, {"dp"}};
  const auto text = conflict({.dp = 2, .tp = 2}, {dp_first, tp_first, tp_first, dp_first});
  EXPECT_TRUE(text.starts_with("ranks wait for each other for ever: rank 0 in all_reduce of 32 bytes over dp of 2"))
      << text;
  for (const char* rank : {"; rank 1 in ", "; rank 2 in ", "; rank 3 in "})
    EXPECT_NE(text.find(rank), std::string::npos);
}

TEST(exchange_order, is_compared_by_the_ranks_themselves) {
  for (const bool differs : {false, true}) {
    const auto errors = testing::rank_errors(3, [&](const comm::Group& world) {
      const auto program = program_of({.dp = 3}, {{"dp"}, {differs && world.rank() == 1 ? "tp" : "dp", 5}, {"dp", 6}});
      const NamedProgram named[] = {{"pass", &program}};
      expect_agreement(world, exchange_facts(named));
    });
    for (const auto& e : errors) {
      if (differs) {
        EXPECT_NE(
            e.find(
                "exchange 2 of the programs is all_reduce of 20 bytes over dp of 3 by \"all_reduce\", in the program "
                "\"pass\""),
            std::string::npos)
            << e;
      } else {
        EXPECT_EQ(e, "");
      }
    }
  }
}

}  // namespace
}  // namespace hpcdl::parallel

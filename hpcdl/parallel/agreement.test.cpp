#include "hpcdl/parallel/agreement.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <string>
#include <vector>

#include "hpcdl/parallel/agree.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl::parallel {
namespace {

std::vector<Fact> told(const std::string& lr, const std::string& seed = "1") {
  return {{"program", "a"}, {"train.lr", lr}, {"train.seed", seed}, {"output", ""}};
}

TEST(agreement, ranks_with_equal_settings_continue) {
  for (int n = 1; n <= 9; ++n)
    testing::run_ranks(n, [&](const comm::Group& world) {
      for (int i = 0; i < 3; ++i) expect_agreement(world, told("0.001"));
    });
}

TEST(agreement, a_rank_with_other_settings_is_named_by_every_rank) {
  for (int n = 2; n <= 9; ++n)
    for (const int odd : {0, n / 2, n - 1}) {
      const auto errors = testing::rank_errors(n, [&](const comm::Group& world) {
        try {
          expect_agreement(world, told(world.rank() == odd ? "0.002" : "0.001"));
        } catch (const Disagreement&) {
          any_rank(world, false);  // a rank that leaves at once would look lost to ranks that still read
          throw;
        }
      });
      for (const auto& e : errors) {
        EXPECT_EQ(e, errors[0]);
        EXPECT_NE(e.find(fmt::format("0.002 on rank {}", odd)), std::string::npos) << e;
        EXPECT_NE(e.find("[ranks] train.lr is "), std::string::npos) << e;
        EXPECT_EQ(e.find("seed"), std::string::npos) << e;
      }
    }
}

TEST(agreement, the_sentence_names_key_values_and_ranks) {
  EXPECT_EQ(difference({told("0.001"), told("0.001")}), "");
  EXPECT_EQ(difference({told("0.001"), told("0.002")}), "train.lr is 0.001 on rank 0 and 0.002 on rank 1");
  EXPECT_EQ(difference({told("1"), told("2", "7"), told("1"), told("1")}),
            "train.lr is 1 on ranks 0, 2 and 3 and 2 on rank 1; train.seed differs, too");
  EXPECT_EQ(difference({told("1"), told("2"), told("3")}), "train.lr is 1 on rank 0, 2 on rank 1 and 3 on rank 2");
  std::vector<std::vector<Fact>> nine;
  for (int r = 0; r < 9; ++r) nine.push_back(told(std::to_string(r)));
  EXPECT_EQ(difference(nine), "train.lr is 0 on rank 0, 1 on rank 1, 2 on rank 2 and 6 other values on other ranks");
  auto empty = told("1");
  empty[3].value = "here";
  EXPECT_EQ(difference({told("1"), empty}), "output is empty on rank 0 and here on rank 1");
}

TEST(agreement, a_rank_of_another_version_may_know_other_keys) {
  auto newer = told("1");
  newer.insert(newer.begin() + 1, {"train.momentum", "0.9"});
  EXPECT_EQ(difference({told("1"), newer}), "train.momentum is not known on rank 0 and 0.9 on rank 1");
  newer[0].value = "b";
  EXPECT_EQ(difference({told("1"), newer}), "program is a on rank 0 and b on rank 1; train.momentum differs, too");
}

TEST(agreement, many_differences_are_counted) {
  std::vector<Fact> one, other;
  for (const char* key : {"a", "b", "c", "d", "e", "f"}) one.push_back({key, "1"}), other.push_back({key, "2"});
  EXPECT_EQ(difference({one, other}), "a is 1 on rank 0 and 2 on rank 1; b, c, d and 2 more differ, too");
}

TEST(agreement, ranks_are_named_by_runs) {
  EXPECT_EQ(name_ranks(std::vector{3}), "rank 3");
  EXPECT_EQ(name_ranks(std::vector{0, 2}), "ranks 0 and 2");
  EXPECT_EQ(name_ranks(std::vector{0, 1, 2, 3, 6, 8}), "ranks 0 to 3, 6 and 8");
  EXPECT_EQ(name_ranks(std::vector{0, 2, 4, 6, 8, 10, 12, 14}), "ranks 0, 2, 4, 6, 8, 10 and others");
}

}  // namespace
}  // namespace hpcdl::parallel

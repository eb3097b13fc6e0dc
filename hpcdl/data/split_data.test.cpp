#include "hpcdl/data/split_data.h"

#include <gtest/gtest.h>

#include <vector>

namespace hpcdl::data {
namespace {

constexpr DataSplit kThird = split_data({2, 5}, 6, 10, 2, 3);  // at compile time: depends only on the arguments
static_assert(kThird.first == LoaderState{2, 9} && kThird.count == 2 && kThird.after == LoaderState{3, 1});

/// Numbers of the endless row that the ranks take in `steps` global batches.
std::vector<std::int64_t> taken(LoaderState at, std::int64_t global, std::int64_t samples, int world, int steps) {
  std::vector<std::int64_t> row;
  for (int s = 0; s < steps; ++s) {
    LoaderState after = at;
    for (int r = 0; r < world; ++r) {
      const auto part = split_data(at, global, samples, r, world);
      for (std::int64_t i = 0; i < part.count; ++i) row.push_back(part.first.epoch * samples + part.first.index + i);
      after = part.after;
    }
    at = after;
  }
  return row;
}

TEST(split_data, any_number_of_ranks_takes_the_same_row_in_the_same_order) {
  for (const std::int64_t samples : {1, 3, 10, 64})
    for (const std::int64_t global : {1, 2, 7, 24, 100})
      for (const LoaderState at : {LoaderState{0, 0}, LoaderState{3, samples - 1}})
        for (int world = 1; world <= 9; ++world) {
          const auto row = taken(at, global, samples, world, 5);
          ASSERT_EQ(std::ssize(row), 5 * global);
          for (std::size_t i = 0; i < row.size(); ++i)
            ASSERT_EQ(row[i], at.epoch * samples + at.index + static_cast<std::int64_t>(i))
                << samples << " " << global << " " << world;
        }
}

TEST(split_data, parts_differ_by_one_sample_at_most_and_the_first_ranks_take_it) {
  const std::int64_t want[] = {3, 3, 2, 2};
  for (int r = 0; r < 4; ++r) EXPECT_EQ(split_data({}, 10, 100, r, 4).count, want[r]);
  EXPECT_EQ(split_data({}, 2, 100, 3, 4).count, 0);
}

TEST(split_data, a_run_goes_on_exactly_on_another_number_of_ranks) {
  const auto whole = taken({}, 12, 31, 1, 9);
  LoaderState at;
  std::vector<std::int64_t> row;
  for (const int world : {4, 1, 8, 2, 3, 6, 12, 5, 7}) {
    const auto part = taken(at, 12, 31, world, 1);
    row.insert(row.end(), part.begin(), part.end());
    at = split_data(at, 12, 31, 0, world).after;
  }
  EXPECT_EQ(row, whole);
}

TEST(split_data, refuses_what_makes_no_sense) {
  EXPECT_THROW(split_data({}, 4, 0, 0, 1), Error);
  EXPECT_THROW(split_data({}, 4, 10, 2, 2), Error);
  EXPECT_THROW(split_data({}, 4, 10, -1, 2), Error);
  EXPECT_THROW(split_data({}, 4, 10, 0, 0), Error);
  EXPECT_THROW(split_data({0, -1}, 4, 10, 0, 1), Error);
}

}  // namespace
}  // namespace hpcdl::data

#include "hpcdl/data/pack_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/rng.h"

namespace hpcdl::data {
namespace {

using Rows = std::vector<std::vector<std::int64_t>>;

TEST(pack_rows, an_item_goes_into_the_first_row_with_room) {
  const std::vector<std::int64_t> lengths{6, 5, 4, 10, 2, 3, 1};
  EXPECT_EQ(pack_rows(lengths, 10), (Rows{{0, 2}, {1, 4, 5}, {3}, {6}}));
  EXPECT_EQ(pack_rows({}, 10), Rows());
}

TEST(pack_rows, every_item_is_in_one_row_and_rows_are_nearly_full) {
  constexpr std::int64_t kRoom = 256;
  std::vector<std::int64_t> lengths;
  for (std::uint64_t i = 0; i < 5000; ++i) lengths.push_back(1 + static_cast<std::int64_t>(Rng{7, 1}.below(i, kRoom)));
  const auto rows = pack_rows(lengths, kRoom);
  std::vector<int> seen(lengths.size());
  for (const auto& row : rows) {
    std::int64_t sum = 0;
    for (const auto i : row) ++seen[static_cast<std::size_t>(i)], sum += lengths[static_cast<std::size_t>(i)];
    EXPECT_LE(sum, kRoom);
    EXPECT_TRUE(std::ranges::is_sorted(row));
  }
  EXPECT_TRUE(std::ranges::all_of(seen, [](int n) { return n == 1; }));
  const auto all = std::reduce(lengths.begin(), lengths.end());
  EXPECT_LT(std::ssize(rows), (all + kRoom - 1) / kRoom * 11 / 10);
  EXPECT_EQ(rows, pack_rows(lengths, kRoom));
}

TEST(pack_rows, positions_begin_again_at_separators_and_rows) {
  const std::vector<TokenId> tokens{9, 1, 2, 9, 3, 4, 5, 9, 9, 6};
  std::vector<std::int32_t> positions{7, 7};
  document_positions(tokens, 5, 9, positions);
  EXPECT_EQ(positions, (std::vector<std::int32_t>{0, 1, 2, 0, 1, 0, 1, 0, 0, 1}));
  document_positions({}, 5, 9, positions);
  EXPECT_TRUE(positions.empty());
}

TEST(pack_rows, refuses_what_fits_no_row) {
  const std::vector<std::int64_t> long_one{3, 11}, empty{0};
  EXPECT_THROW(pack_rows(long_one, 10), Error);
  EXPECT_THROW(pack_rows(empty, 10), Error);
}

}  // namespace
}  // namespace hpcdl::data

#include "hpcdl/ops/ring_attention/ring_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace hpcdl {
namespace {

/// Counts how often a rank computes each pair of a query and a key of the sequence, from what Attention::Args mean.
std::vector<int> seen_by_all(const RingPlan& plan) {
  const auto n = plan.tokens, length = 2 * plan.ranks * n;
  std::vector<int> seen(static_cast<std::size_t>(length * length));
  for (int rank = 0; rank < plan.ranks; ++rank)
    for (int step = 0; step <= plan.last_step(); ++step)
      for (const auto& p : plan.pairs(rank, step))
        for (std::int64_t t = 0; t < p.rows; ++t) {
          const auto last = t + n - p.rows + p.ahead;  // the position of the query, counted from the first of the keys
          std::int64_t keys = 0;
          for (std::int64_t j = 0; j < n; ++j) {
            if (p.causal && (j > last || (p.window > 0 && j + p.window <= last))) continue;
            const auto query = plan.place(rank, p.query) * n + t,
                       key = plan.place((rank + plan.ranks - step) % plan.ranks, p.key) * n + j;
            ++seen[static_cast<std::size_t>(query * length + key)];
            ++keys;
          }
          EXPECT_GT(keys, 0) << "a row without keys";
        }
  return seen;
}

TEST(ring_plan, every_query_sees_every_key_of_its_mask_once) {
  for (const bool zigzag : {false, true})
    for (int ranks = 1; ranks <= 8; ++ranks)
      for (const std::int64_t tokens : {1, 2, 5})
        for (std::int64_t window = 0; window <= 2 * ranks * tokens + 1; ++window) {
          const RingPlan plan{ranks, zigzag, tokens, window};
          const auto length = 2 * ranks * tokens;
          const auto seen = seen_by_all(plan);
          for (std::int64_t q = 0; q < length; ++q)
            for (std::int64_t k = 0; k < length; ++k)
              ASSERT_EQ(seen[static_cast<std::size_t>(q * length + k)], k <= q && (window == 0 || k + window > q))
                  << ranks << ' ' << tokens << ' ' << window << ": " << q << ", " << k;
        }
}

TEST(ring_plan, first_pairs_have_the_own_keys_of_all_queries) {
  for (const bool zigzag : {false, true})
    for (int ranks = 1; ranks <= 4; ++ranks)
      for (const std::int64_t window : {0, 1, 3, 100})
        for (int rank = 0; rank < ranks; ++rank) {
          const auto pairs = RingPlan{ranks, zigzag, 4, window}.pairs(rank, 0);
          for (const int query : {0, 1}) {
            const auto first = std::find_if(pairs.begin(), pairs.end(), [&](auto& p) { return p.query == query; });
            ASSERT_NE(first, pairs.end());
            EXPECT_EQ(*first, (RingPlan::Pair{query, query, 4, true, window, 0}));
          }
        }
}

/// Every rank has two whole pairs in each step of a balanced ring; otherwise the last rank has four, the first none.
TEST(ring_plan, zigzag_divides_the_work) {
  const RingPlan even{8, true, 16, 0}, uneven{8, false, 16, 0};
  for (int step = 1; step < 8; ++step)
    for (int rank = 0; rank < 8; ++rank) {
      EXPECT_EQ(even.pairs(rank, step).size(), 2u);
      EXPECT_EQ(uneven.pairs(rank, step).size(), step <= rank ? 4u : 0u);
    }
}

/// Of neighbouring chunks, keys beyond the window of all queries do not travel.
TEST(ring_plan, windows_end_the_ring_early) {
  EXPECT_EQ((RingPlan{8, false, 16, 0}.last_step()), 7);
  EXPECT_EQ((RingPlan{8, false, 16, 1}.last_step()), 0);
  EXPECT_EQ((RingPlan{8, false, 16, 2}.last_step()), 1);
  EXPECT_EQ((RingPlan{8, false, 16, 33}.last_step()), 1);
  EXPECT_EQ((RingPlan{8, false, 16, 34}.last_step()), 2);
  EXPECT_EQ((RingPlan{8, true, 16, 2}.last_step()), 7);
  EXPECT_EQ((RingPlan{1, true, 16, 0}.last_step()), 0);
}

}  // namespace
}  // namespace hpcdl

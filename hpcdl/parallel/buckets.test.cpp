#include "hpcdl/parallel/buckets.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "hpcdl/core/error.h"
#include "hpcdl/rng.h"

namespace hpcdl::parallel {
namespace {

std::vector<int> sizes_of(const BucketPlan& plan) {
  std::vector<int> n;
  for (const auto& b : plan.buckets) n.push_back(b.end - b.begin);
  return n;
}

/// Every tensor within its bucket and apart from the others, buckets without gaps.
void expect_whole(const BucketPlan& plan, std::span<const std::int64_t> bytes) {
  ASSERT_EQ(plan.offset.size(), bytes.size());
  std::int64_t at = 0;
  int tensor = 0;
  for (const auto& b : plan.buckets) {
    EXPECT_EQ(b.offset, at);
    EXPECT_EQ(b.offset % 4096, 0);
    EXPECT_EQ(b.begin, tensor);
    EXPECT_LT(b.begin, b.end);
    std::int64_t within = b.offset;
    for (; tensor < b.end; ++tensor) {
      const auto i = static_cast<std::size_t>(tensor);
      EXPECT_EQ(plan.offset[i] % 256, 0);
      EXPECT_GE(plan.offset[i], within);
      within = plan.offset[i] + bytes[i];
    }
    at = b.offset + b.bytes;
    EXPECT_LE(within, at);
  }
  EXPECT_EQ(tensor, std::ssize(bytes));
  EXPECT_EQ(at, plan.bytes);
}

TEST(buckets, they_grow_from_the_first_to_the_cap_and_taper_towards_the_end) {
  const std::vector<std::int64_t> bytes(18, 1 << 20);
  const auto plan = plan_buckets(bytes, {.cap = 4 << 20, .first = 1 << 20});
  EXPECT_EQ(sizes_of(plan), (std::vector{1, 2, 4, 4, 3, 2, 1, 1}));
  expect_whole(plan, bytes);
}

TEST(buckets, a_tensor_beyond_the_cap_has_its_own) {
  const std::vector<std::int64_t> bytes{1000, 9 << 20, 1000, 1000};
  const auto plan = plan_buckets(bytes, {.cap = 4 << 20, .first = 1 << 20});
  EXPECT_EQ(sizes_of(plan), (std::vector{1, 1, 2}));
  expect_whole(plan, bytes);
}

TEST(buckets, a_cap_of_zero_gives_every_tensor_its_own) {
  const std::vector<std::int64_t> bytes{4, 0, 100, 1 << 20};
  const auto plan = plan_buckets(bytes, {.cap = 0});
  EXPECT_EQ(sizes_of(plan), (std::vector{1, 1, 1, 1}));
  expect_whole(plan, bytes);
}

TEST(buckets, nothing_gives_nothing) {
  const auto plan = plan_buckets({}, {});
  EXPECT_TRUE(plan.buckets.empty());
  EXPECT_EQ(plan.bytes, 0);
  EXPECT_THROW(plan_buckets({}, {.cap = -1}), Error);
}

TEST(buckets, any_sizes_are_laid_out_whole_and_within_the_cap) {
  const Rng rng{5, 1};
  for (std::uint64_t n = 0; n < 300; ++n) {
    std::vector<std::int64_t> bytes;
    for (std::uint64_t i = 0; i < 1 + n % 40; ++i)
      bytes.push_back(static_cast<std::int64_t>(rng.below(1000 * n + i, std::uint64_t{1} << (1 + n % 23))));
    const BucketOptions o{.cap = static_cast<std::int64_t>(rng.below(n, 1 << 22)),
                          .first = static_cast<std::int64_t>(rng.below(n + 7, 1 << 18))};
    const auto plan = plan_buckets(bytes, o);
    expect_whole(plan, bytes);
    for (std::size_t b = 0; b < plan.buckets.size(); ++b)
      if (plan.buckets[b].end - plan.buckets[b].begin > 1) {
        EXPECT_LE(plan.buckets[b].bytes, (b == 0 ? std::min(o.first, o.cap) : o.cap) + 4096);
      }
  }
}

}  // namespace
}  // namespace hpcdl::parallel

// What ranks learn from the times of their stretches.

#include "hpcdl/comm/algo/staging_trials.h"

#include <gtest/gtest.h>

namespace hpcdl::comm::algo {
namespace {

/// `count` stretches with non-temporal stores that take this long either way. Every `disturbed`-th takes 4 ms, as if
/// another program had run.
int past_caches(StoreChoice& choice, int count, std::int64_t through, std::int64_t past, int disturbed = 1000) {
  int taken = 0;
  std::int64_t last = 0;
  for (int i = 0; i < count; ++i) {
    const bool now = choice.begin();
    if (last > 0) choice.took_before(last);
    taken += now;
    last = i % disturbed == disturbed - 1 ? 4'000'000 : now ? past : through;
  }
  return taken;
}

TEST(store_choice, takes_what_is_faster_and_seldom_tries_the_other) {
  for (const int disturbed : {1000, 3}) {
    StoreChoice fast_caches;
    EXPECT_LE(past_caches(fast_caches, 320, 50'000, 160'000, disturbed), 12);
    StoreChoice slow_caches;
    EXPECT_GE(past_caches(slow_caches, 320, 520'000, 160'000, disturbed), 320 - 20);
  }
}

TEST(store_choice, follows_a_change) {
  StoreChoice choice;
  past_caches(choice, 1000, 50'000, 160'000);
  past_caches(choice, 100, 520'000, 160'000);
  EXPECT_GE(past_caches(choice, 64, 520'000, 160'000), 60);
  past_caches(choice, 200, 50'000, 160'000);
  EXPECT_LE(past_caches(choice, 64, 50'000, 160'000), 4);
}

TEST(apart, reading_pays_where_long_sums_wait_often) {
  Apart apart;
  EXPECT_FALSE(apart.reading_pays(64));
  apart.took(4'000'000, 2);
  EXPECT_FALSE(apart.reading_pays(1 << 20)) << "one trial is not enough";
  for (int i = 0; i < 15; ++i) apart.took(500'000, 2);
  EXPECT_FALSE(apart.reading_pays(1 << 20));
  for (int i = 0; i < 16; ++i) apart.took(4'000'000, 2);
  EXPECT_TRUE(apart.reading_pays(16));
  EXPECT_FALSE(apart.reading_pays(2)) << "its own phases take the same time";
  for (int i = 0; i < 13; ++i) apart.read();
  EXPECT_FALSE(apart.reading_pays(16)) << "staging is tried again";
  Apart many;
  for (int i = 0; i < 16; ++i) many.took(4'000'000, 16);
  EXPECT_FALSE(many.reading_pays(64)) << "the time is spent on their work";
}

}  // namespace
}  // namespace hpcdl::comm::algo

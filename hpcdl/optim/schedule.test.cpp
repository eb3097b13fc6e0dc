#include "hpcdl/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "hpcdl/core/error.h"

namespace hpcdl {
namespace {

constexpr ScheduleKind kAll[] = {ScheduleKind::constant, ScheduleKind::cosine, ScheduleKind::linear, ScheduleKind::wsd};

TEST(schedule, warms_up_in_equal_steps) {
  for (auto kind : kAll) {
    const Schedule s{kind, 1.0, 0.1, 100, 10};
    EXPECT_DOUBLE_EQ(s.at(0), 0.1);
    EXPECT_DOUBLE_EQ(s.at(4), 0.5);
    EXPECT_DOUBLE_EQ(s.at(9), 1.0);
    EXPECT_DOUBLE_EQ(s.at(10), 1.0);
  }
}

TEST(schedule, arrives_at_the_minimum_with_the_last_step_and_stays) {
  for (auto kind : {ScheduleKind::cosine, ScheduleKind::linear, ScheduleKind::wsd}) {
    const Schedule s{kind, 1.0, 0.1, 101, 0};
    EXPECT_NEAR(s.at(100), 0.1, 1e-12);
    EXPECT_NEAR(s.at(5000), 0.1, 1e-12);
    for (int i = 1; i <= 100; ++i) EXPECT_LE(s.at(i), s.at(i - 1));
  }
  EXPECT_DOUBLE_EQ((Schedule{ScheduleKind::constant, 1.0, 0.1, 101, 0}).at(100), 1.0);
}

TEST(schedule, shapes) {
  EXPECT_NEAR((Schedule{ScheduleKind::cosine, 1.0, 0.0, 101, 0}).at(50), 0.5, 1e-12);
  EXPECT_NEAR((Schedule{ScheduleKind::cosine, 1.0, 0.0, 101, 0}).at(25), 0.5 + 0.5 * std::sqrt(0.5), 1e-12);
  EXPECT_NEAR((Schedule{ScheduleKind::linear, 1.0, 0.0, 101, 0}).at(25), 0.75, 1e-12);
  const Schedule wsd{ScheduleKind::wsd, 1.0, 0.0, 101, 0, 0.2};
  EXPECT_DOUBLE_EQ(wsd.at(80), 1.0);
  EXPECT_NEAR(wsd.at(90), 0.5, 1e-12);
}

TEST(schedule, one_step_and_all_warm_up_are_finite) {
  for (auto kind : kAll) {
    EXPECT_DOUBLE_EQ((Schedule{kind, 1.0, 0.0, 1, 0}).at(0), 1.0);
    EXPECT_DOUBLE_EQ((Schedule{kind, 1.0, 0.0, 4, 8}).at(3), 0.5);
  }
}

TEST(schedule, a_larger_batch_takes_larger_steps) {
  EXPECT_EQ(lr_factor(LrScaling::none, 512, 128), 1);
  EXPECT_EQ(lr_factor(LrScaling::linear, 512, 128), 4);
  EXPECT_EQ(lr_factor(LrScaling::sqrt, 512, 128), 2);
  EXPECT_EQ(lr_factor(LrScaling::linear, 64, 128), 0.5);
  EXPECT_EQ(lr_factor(LrScaling::linear, 128, 128), 1);
  EXPECT_THROW(lr_factor(LrScaling::sqrt, 128, 0), Error);
}

}  // namespace
}  // namespace hpcdl

#include "hpcdl/core/units.h"

#include <gtest/gtest.h>

#include <limits>

namespace hpcdl {
namespace {

TEST(units, a_value_that_rounds_up_is_shown_in_the_next_unit) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(1048575), "1.00 MiB");
  EXPECT_EQ(format_bytes(-1536), "-1.50 KiB");
  EXPECT_EQ(format_bytes(1e300).substr(0, 3), "909");  // larger than the last unit
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(999.6), "1.00K");
  EXPECT_EQ(format_count(999'990), "999.99K");
  EXPECT_EQ(format_count(999'996), "1.00M");
  EXPECT_EQ(format_duration(350e-6), "350 us");
  EXPECT_EQ(format_duration(999.7e-6), "1 ms");
  EXPECT_EQ(format_duration(0.9996), "1.0 s");
  EXPECT_EQ(format_duration(59.94), "59.9 s");
  EXPECT_EQ(format_duration(59.96), "1m 00s");
  EXPECT_EQ(format_duration(3599.7), "1h 00m");
}

TEST(units, a_time_that_is_none_has_no_digits) {
  for (const double s :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), 1e300})
    EXPECT_EQ(format_duration(s), "?");
}

}  // namespace
}  // namespace hpcdl

#include "hpcdl/train/wire_advice.h"

#include <gtest/gtest.h>

#include "hpcdl/testing/ranks.h"

namespace hpcdl::train {
namespace {

TEST(wire_advice, fewer_bytes_pay_on_slow_links) {
  constexpr double kCoding = 2e-9;  // seconds for an element
  const auto slow = wire_times(25e6, kCoding, 4, WireCode::int4), fast = wire_times(10e9, kCoding, 4, WireCode::int4);
  EXPECT_DOUBLE_EQ(slow.plain, 0.16);
  EXPECT_DOUBLE_EQ(slow.coded, 0.515625 / 25);
  EXPECT_DOUBLE_EQ(slow.coding, 2e-3);
  EXPECT_FALSE(slow.pointless());
  EXPECT_TRUE(fast.pointless());
  EXPECT_EQ(wire_warning("parallel.wire_gradients", slow, 25e6, 4, WireCode::int4), "");
  const auto said = wire_warning("parallel.wire_gradients", fast, 10e9, 4, WireCode::int4);
  EXPECT_NE(said.find("parallel.wire_gradients = \"int4\" gains no time"), std::string::npos) << said;
}

TEST(wire_advice, ranks_measure_together) {
  testing::run_ranks(3, [](const comm::Group& world) {
    Pool pool(1);
    EXPECT_GT(measured_link(world, pool), 0);
    for (const auto code : {WireCode::bf16, WireCode::int8, WireCode::int4}) EXPECT_GT(measured_coding(code, pool), 0);
  });
}

}  // namespace
}  // namespace hpcdl::train

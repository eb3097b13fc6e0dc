#include "hpcdl/lab/light.h"

#include <gtest/gtest.h>

#include "hpcdl/lab/cases.h"

namespace hpcdl::lab {
namespace {

Roofs machine() {
  Roofs r{.f32 = 500e9,
          .bf16 = 1000e9,
          .i8 = 2000e9,
          .memory_read = 40e9,
          .memory_copy = 60e9,
          .cache_read = 200e9,
          .cache_bytes = 32e6,
          .caches = {}};
  r.memory_write = 80e9, r.memory_update = 70e9;
  r.caches = {{"L1", 0.1e6, 800e9, 850e9, 900e9}, {"L2", 2e6, 400e9, 300e9}, {"L3", 32e6, 200e9, 180e9}};
  return r;
}

Work reading(double bytes) { return {.bytes = bytes}; }
Work copying(double bytes) { return {.bytes = bytes, .writes = bytes / 2}; }

TEST(light, bytes_come_from_the_nearest_level_that_can_hold_them) {
  const auto r = machine();
  std::string level;
  EXPECT_DOUBLE_EQ(traffic_seconds(reading(0.08e6), r, &level), 0.08e6 / 800e9);
  EXPECT_EQ(level, "L1");
  const double l1 = 0.1e6 / 800e9, l2 = l1 + 1.9e6 / 400e9, l3 = l2 + 30e6 / 200e9;
  EXPECT_DOUBLE_EQ(traffic_seconds(reading(1.1e6), r, &level), l1 + 1e6 / 400e9);
  EXPECT_EQ(level, "L2");
  EXPECT_DOUBLE_EQ(traffic_seconds(reading(32e6), r, &level), l3);
  EXPECT_EQ(level, "L3");
  EXPECT_DOUBLE_EQ(traffic_seconds(reading(42e6), r, &level), l3 + 10e6 / 40e9);
  EXPECT_EQ(level, "memory");
  EXPECT_DOUBLE_EQ(traffic_seconds(reading(128e6), r, &level), 128e6 / 40e9) << "nothing is left of so long a pass";
}

TEST(light, the_mix_of_reads_and_writes_counts) {
  const auto r = machine();
  EXPECT_DOUBLE_EQ(traffic_seconds(copying(1e9), r), 1e9 / 60e9);
  const auto rate = [&](double writes, double updates = 0) {
    return memory_rate({.bytes = 1, .writes = writes, .updates = updates}, r);
  };
  EXPECT_DOUBLE_EQ(rate(1), 80e9);
  EXPECT_DOUBLE_EQ(1 / rate(0.25), (1 / 40e9 + 1 / 60e9) / 2);
  EXPECT_DOUBLE_EQ(1 / rate(0.75), (1 / 60e9 + 1 / 80e9) / 2);
  EXPECT_DOUBLE_EQ(rate(0.5, 0.5), 70e9);
  EXPECT_DOUBLE_EQ(1 / rate(0.25, 0.25), 0.5 / 70e9 + 0.5 / 40e9) << "half is updated, half is read";
  auto unknown = r;
  unknown.memory_write = unknown.memory_update = 0;
  EXPECT_DOUBLE_EQ(memory_rate({.bytes = 1, .writes = 1}, unknown), 60e9) << "as half and half";
  EXPECT_DOUBLE_EQ(memory_rate({.bytes = 1, .writes = 0.5, .updates = 0.5}, unknown), 60e9);
}

TEST(light, what_is_updated_in_place_needs_room_once) {
  const auto r = machine();
  const Work update{.bytes = 0.16e6, .writes = 0.08e6, .updates = 0.08e6};
  std::string level;
  EXPECT_DOUBLE_EQ(traffic_seconds(update, r, &level), 0.16e6 / 900e9);
  EXPECT_EQ(level, "L1");
}

TEST(light, an_outer_level_never_seems_faster_than_an_inner_one) {
  auto r = machine();
  r.caches[0].read = 100e9, r.caches[0].copy = 90e9;  // a disturbed measurement
  EXPECT_DOUBLE_EQ(traffic_seconds(reading(0.08e6), r), 0.08e6 / 400e9);
}

TEST(light, without_cache_levels_the_last_one_stands_for_all) {
  auto r = machine();
  r.caches.clear();
  EXPECT_DOUBLE_EQ(traffic_seconds(reading(1e6), r), 1e6 / 200e9);
}

TEST(light, takes_the_longer_of_arithmetic_and_traffic) {
  const auto r = machine();
  const auto product = light({.flops = 1e12, .dtype = DType::bf16, .bytes = 1e9}, r);
  EXPECT_EQ(product.bound, "bf16");
  EXPECT_DOUBLE_EQ(product.seconds, 1);
  EXPECT_DOUBLE_EQ(light({.flops = 1e12, .dtype = DType::u8, .bytes = 1e9}, r).seconds, 0.5);
  const auto traffic = light({.flops = 1e9, .dtype = DType::f32, .bytes = 12e9}, r);
  EXPECT_EQ(traffic.bound, "memory");
  EXPECT_DOUBLE_EQ(traffic.seconds, 12e9 / 40e9);
  const LightTime both[] = {product, traffic};
  EXPECT_DOUBLE_EQ(sum(both).seconds, product.seconds + traffic.seconds);
  EXPECT_EQ(sum(both).bound, "bf16");
}

Work first_record(const char* op, const char* shape, DType dtype) {
  for (const auto& c : cases_at({op}, shape)) {
    if (c.dtype != dtype || c.backward || c.op != op) continue;
    Graph g({.inference = true});
    c.record(g);
    return work_of(g.program(), g.program().records.back());
  }
  return {};
}

TEST(light, work_is_read_from_the_operands) {
  const auto add = first_record("add", "1000", DType::f32);
  EXPECT_EQ(add.bytes, 12000);
  EXPECT_EQ(add.writes, 4000);
  EXPECT_EQ(add.footprint(), 12000);
  const auto into = first_record("fill+add_into", "1000", DType::bf16);
  EXPECT_EQ(into.dtype, DType::bf16);
  EXPECT_EQ(into.bytes, 6000);
  EXPECT_EQ(into.writes, 2000);
  EXPECT_EQ(into.footprint(), 4000);
  EXPECT_EQ(first_record("int4_linear", "1x64x64", DType::bf16).dtype, DType::i8);
  EXPECT_EQ(first_record("cross_entropy", "16x1000", DType::f32).writes, 8) << "scratch is no result";
}

TEST(light, scratch_says_nothing_about_the_arithmetic) {
  int seen = 0;
  for (const auto& c : cases_at({"lm_head_gradient"}, "16x1000x64")) {
    ASSERT_TRUE(c.backward) << "its forward alone computes no gradients, and its flops count them";
    Graph g;
    c.record(g);
    const auto& p = g.program();
    for (const auto& r : p.records) {
      EXPECT_NE(work_of(p, r).dtype, DType::i8) << case_label(c);
      ++seen;
    }
  }
  EXPECT_GE(seen, 4) << "f32 and bf16, forward and backward";
}

}  // namespace
}  // namespace hpcdl::lab

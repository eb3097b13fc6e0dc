#include "hpcdl/lab/roofs.h"

#include <gtest/gtest.h>

#include "hpcdl/graph/graph.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/lab/machine.h"
#include "hpcdl/ops/softmax/softmax.h"

namespace hpcdl::lab {
namespace {

TEST(roofs, are_remembered_and_a_damaged_file_is_measured_anew) {
  const io::TempFolder tmp;
  ::setenv("XDG_CACHE_HOME", tmp.path().c_str(), 1);
  Pool pool(1);
  const auto first = roofs(pool);
  for (const double x : {first.f32, first.bf16, first.i8, first.memory_read, first.memory_copy, first.cache_read, first.cache_bytes}) EXPECT_GT(x, 0);
  ASSERT_TRUE(std::filesystem::exists(roofs_file(pool)));
  EXPECT_EQ(roofs(pool).f32, first.f32);
  ASSERT_EQ(first.caches.size(), this_machine().caches.size());
  ASSERT_EQ(roofs(pool).caches.size(), first.caches.size());
  for (const auto& c : first.caches) EXPECT_TRUE(c.read > 0 && c.copy > 0 && c.bytes > 0 && c.name.starts_with('L')) << c.name;
  EXPECT_GE(roofs(pool, Remember::best).f32, first.f32);
  io::write_file_atomic(roofs_file(pool), "{\"f32\": ");
  EXPECT_GT(roofs(pool).f32, 0);
  // A file from before the caches were measured.
  io::write_file_atomic(roofs_file(pool), R"({"f32":1,"bf16":1,"i8":1,"memory_read":1,"memory_copy":1,"cache_read":1,"cache_bytes":1})");
  EXPECT_EQ(roofs(pool).caches.size(), first.caches.size());
  ::setenv("XDG_CACHE_HOME", "/dev/null", 1);  // no place to remember
  EXPECT_GT(roofs(pool).f32, 0);
}

TEST(roofs, light_takes_the_slower_of_arithmetic_and_memory) {
  Graph g({.inference = true});
  const Var x = g.input("x", {{64, 1024}, DType::f32});
  g.keep(softmax(softmax(x)));
  const Program p = g.finish();
  ASSERT_EQ(p.records.size(), 2u);
  const Cost cost = p.records[0].cost;
  Roofs r{.f32 = 1e9, .bf16 = 4e9, .i8 = 8e9, .memory_read = 1e15, .memory_copy = 1e15, .cache_read = 1e15, .cache_bytes = 1 << 20, .caches = {}};
  EXPECT_DOUBLE_EQ(speed_of_light(p, r), 2 * cost.flops / 1e9);
  r.f32 = 1e20;
  r.cache_read = 2e9, r.memory_read = 1e9, r.memory_copy = 1.5e9;
  EXPECT_DOUBLE_EQ(speed_of_light(p, r), 2 * cost.bytes / 2e9) << "fits the cache";
  r.cache_bytes = 1000;
  EXPECT_DOUBLE_EQ(speed_of_light(p, r), 2 * cost.bytes / 1.5e9);
}

TEST(machine, knows_itself) {
  const auto m = this_machine();
  EXPECT_GT(m.cpus_online, 0);
  EXPECT_GT(m.memory_total, m.memory_available);
  EXPECT_FALSE(m.isa.empty());
  EXPECT_GT(peak_rss_bytes(), 1 << 20);
  EXPECT_LT(peak_rss_bytes(), m.memory_total);
  EXPECT_EQ(free_disk_bytes("/proc/none"), -1);
}

}  // namespace
}  // namespace hpcdl::lab

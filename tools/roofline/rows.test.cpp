#include "tools/roofline/rows.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "hpcdl/io/config_table.h"
#include "tools/roofline/report_for_tests.h"

namespace hpcdl::lab::roofline {
namespace {

TEST(rows, the_seed_is_exact) {
  const auto roofs = roofs_for_tests();
  std::vector<Row> rows;
  for (const auto& c : seed_cases()) rows.push_back(row_of(c, "seed", roofs));
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].label(), "add 33554432 f32 fwd");
  EXPECT_DOUBLE_EQ(rows[0].intensity(), 1.0 / 12) << "one addition for two floats read and one written";
  EXPECT_EQ(rows[0].light.bound, "memory");
  EXPECT_EQ(rows[1].label(), "matmul 4096x4096x4096 f32 fwd");
  EXPECT_DOUBLE_EQ(rows[1].intensity(), 4096.0 / 6) << "2 n^3 operations for 12 n^2 bytes";
  EXPECT_NEAR(rows[1].intensity(), 682.67, 0.005);
  EXPECT_EQ(rows[1].light.bound, "f32");
  EXPECT_DOUBLE_EQ(rows[1].light.seconds, 2.0 * 4096 * 4096 * 4096 / roofs.f32);
  EXPECT_EQ(rows[2].op, "softmax");
  EXPECT_DOUBLE_EQ(rows[2].intensity(), 5.0 / 8) << "one read and one write";
  EXPECT_EQ(rows[2].light.bound, "memory");
}

TEST(rows, faster_than_light_is_a_fault) {
  Row row = row_of(seed_cases()[0], "seed", roofs_for_tests());
  EXPECT_FALSE(row.fault()) << "not measured";
  row.seconds = row.light.seconds * 1.25;
  EXPECT_FALSE(row.fault());
  EXPECT_DOUBLE_EQ(row.share(), 0.8);
  row.seconds = row.light.seconds * 0.999;
  EXPECT_FALSE(row.fault()) << "within the variation of roofs";
  row.seconds = row.light.seconds * 0.9;
  EXPECT_TRUE(row.fault());
}

TEST(rows, a_case_is_timed_and_several_records_add_up) {
  Pool pool(2);
  const Place place(Device::cpu(), pool);
  std::shared_ptr<Buffer> arena;
  for (const auto& c : cases_at({"layer_norm"}, "64x256")) {
    if (c.op != "layer_norm") continue;
    const auto row = measure(c, "case", place, roofs_for_tests(), {.seconds = 0.005}, arena);
    EXPECT_GT(row.seconds, 0);
    EXPECT_LE(row.fastest, row.seconds);
    EXPECT_GE(row.slowest, row.seconds);
    EXPECT_GE(row.runs, 3);
    EXPECT_EQ(row.parts.size(), c.backward ? 2u : 1u);
    double bytes = 0;
    for (const auto& p : row.parts) bytes += p.bytes();
    EXPECT_DOUBLE_EQ(row.cost.bytes(), bytes);
    EXPECT_TRUE(arena);
  }
}

TEST(rows, a_training_step_is_all_of_its_records) {
  train::RunConfig config;
  io::ConfigTable(config).apply_toml(
      "[model]\nfamily = \"llama\"\nlayers = 3\nheads = 2\nwidth = 64\ncontext = 32\nvocab = 300\n[train]\nbatch = "
      "2\naccumulate = 3\n",
      "test");
  Pool pool(1);
  const auto roofs = roofs_for_tests();
  const auto rows = step_rows(config, pool, roofs, {.step_runs = 2}, true, {});
  const auto find = [&](const std::string& op, const std::string& pass) {
    return std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.op == op && r.pass == pass; });
  };
  for (const auto& [op, pass] : {std::pair{"attention", "forward"}, {"attention", "backward"}}) {
    const auto row = find(op, pass);
    ASSERT_NE(row, rows.end()) << op;
    EXPECT_EQ(row->count, 9) << "three layers, three micro-batches";
    EXPECT_NE(row->scope.find('*'), std::string::npos) << row->scope;
  }
  ASSERT_NE(find("adamw", "update"), rows.end());
  EXPECT_EQ(find("adamw", "update")->count, 1);
  for (const auto& r : rows) {
    EXPECT_TRUE(r.measured()) << r.op;
    EXPECT_GT(r.light.seconds, 0) << r.op;
    EXPECT_EQ(r.source, "step");
  }
  double last = rows.front().seconds * static_cast<double>(rows.front().count);
  for (const auto& r : rows) {
    const double weight = r.seconds * static_cast<double>(r.count);
    EXPECT_LE(weight, last);
    last = weight;
  }
  const auto planned = step_rows(config, pool, roofs, {}, false, {});
  EXPECT_EQ(planned.size(), rows.size());
  EXPECT_FALSE(planned.front().measured());
}

TEST(rows, a_step_of_an_image_classifier_needs_no_data) {
  train::RunConfig config;
  io::ConfigTable(config).apply_toml(
      "[model]\nfamily = \"resnet18\"\nchannels = 4\n[data]\nmixup = 0.2\n[train]\nbatch = 2\noptimizer = \"sgd\"\n",
      "test");
  Pool pool(1);
  const auto rows = step_rows(config, pool, roofs_for_tests(), {.step_runs = 1}, true, {});
  std::int64_t convolutions = 0;
  for (const auto& r : rows) {
    EXPECT_TRUE(r.measured()) << r.op;
    if (r.op == "conv2d" && r.pass == "forward") convolutions += r.count;
  }
  EXPECT_EQ(convolutions, 20) << "a stem, sixteen in blocks, three around them";
}

}  // namespace
}  // namespace hpcdl::lab::roofline

#include "tools/ranks/steps.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "hpcdl/models/family.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl::lab {
namespace {

TEST(bench_ddp, every_variant_takes_its_steps_and_says_what_was_exchanged) {
  io::ModelConfig model{.layers = 2, .heads = 2, .width = 32, .context = 16, .vocab = 64};
  model.tied = false;
  models::resolve(model);
  testing::run_ranks(3, [&](const comm::Group& world) {
    Pool pool(1);
    const auto report = bench_steps(world, pool, model, ddp_variants({0.02, 25}), {.batch = 2, .rounds = 2});
    ASSERT_EQ(report.results.size(), 4u);
    EXPECT_EQ(report.tokens, 96);
    for (const auto& r : report.results) {
      EXPECT_EQ(r.steps.size(), 2u) << r.variant.name;
      EXPECT_GT(r.seconds(), 0);
      EXPECT_EQ(r.comm_seconds > 0, r.variant.exchange) << r.variant.name;
      EXPECT_GE(r.hidden(), 0);
    }
    EXPECT_EQ(report.find("compute")->buckets, 0);
    EXPECT_EQ(report.find("blocking")->hidden(), 0) << "all of it is waited for";
    EXPECT_GT(report.find("0.02 MB")->buckets, report.find("25 MB")->buckets);
    EXPECT_GT(report.find("blocking")->buckets, report.find("0.02 MB")->buckets);
    if (world.rank() > 0) return;
    const auto json = ddp_json(report);
    EXPECT_EQ(json["forms"].size(), 4u);
    EXPECT_EQ(json["forms"][1]["speedup_vs_blocking"], 1.0);
    EXPECT_NE(ddp_table(report).find("blocking"), std::string::npos);
    EXPECT_NE(ddp_picture(report, "title").find("</svg>"), std::string::npos);
    EXPECT_NE(ddp_picture(report, "title").find("prefers-color-scheme:dark"), std::string::npos);
  });
}

TEST(bench_zero, every_stage_takes_the_same_steps_with_less_memory) {
  io::ModelConfig model{.layers = 2, .heads = 2, .width = 64, .context = 16, .vocab = 600};
  model.family = io::Family::llama;
  models::resolve(model);
  testing::run_ranks(3, [&](const comm::Group& world) {
    Pool pool(1);
    const auto report = bench_steps(world, pool, model, zero_variants({0, 1, 2, 3}), {.batch = 2, .rounds = 2});
    ASSERT_EQ(report.results.size(), 4u);
    for (std::size_t i = 1; i < 4; ++i) {
      EXPECT_EQ(report.results[i].loss, report.results[0].loss);
      EXPECT_LT(report.results[i].state_bytes, report.results[i - 1].state_bytes);
    }
    if (world.rank() > 0) return;
    EXPECT_EQ(zero_json(report)["stages"][2]["zero"], 2);
    EXPECT_NE(zero_table(report).find("zero 1"), std::string::npos);
  });
}

/// What the counters of the group count is what the formulas say, to the byte where sizes divide by the ranks.
TEST(bench_tensor, bytes_between_ranks_are_those_of_the_formulas) {
  for (const auto family : {io::Family::gpt2, io::Family::llama}) {
    for (const int n : {1, 2, 4}) {
      for (const auto compute : {DType::f32, DType::bf16}) {
        testing::run_ranks(n, [&](const comm::Group& world) {
          io::ModelConfig c;
          c.family = family, c.layers = 3, c.heads = 4, c.width = 64, c.context = 16, c.vocab = 50;
          models::resolve(c);
          Pool pool(1);
          const auto report =
              bench_steps(world, pool, c, tensor_variants(), {.batch = 2, .rounds = 1, .compute = compute});
          ASSERT_EQ(report.results.size(), 3u);
          for (const auto& r : report.results) {
            EXPECT_DOUBLE_EQ(r.wire_bytes, r.declared_bytes) << r.variant.name << ' ' << n;
            EXPECT_NEAR(r.loss, report.results[0].loss, (compute == DType::f32 ? 1e-5 : 0x1p-8) * r.loss);
            EXPECT_GT(r.seconds(), 0);
          }
          if (n > 1) {
            EXPECT_GT(report.results[2].wire_bytes, 1.5 * report.results[0].wire_bytes);
          }
          EXPECT_NE(tensor_table(report).find("sequence"), std::string::npos);
          EXPECT_EQ(tensor_json(report)["schemes"].size(), 3u);
        });
      }
    }
  }
}

}  // namespace
}  // namespace hpcdl::lab

#include "hpcdl/lab/ddp/ddp.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "hpcdl/models/family.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl::lab {
namespace {

TEST(ddp_bench, every_form_takes_its_steps_and_says_what_was_exchanged) {
  io::ModelConfig model{.layers = 2, .heads = 2, .width = 32, .context = 16, .vocab = 64};
  model.tied = false;
  models::resolve(model);
  testing::run_ranks(3, [&](const comm::Group& world) {
    Pool pool(1);
    const auto report = bench_ddp(world, pool, model, ddp_forms({0.02, 25}), {.batch = 2, .rounds = 2});
    ASSERT_EQ(report.results.size(), 4u);
    EXPECT_EQ(report.tokens, 96);
    for (const auto& r : report.results) {
      EXPECT_EQ(r.steps.size(), 2u) << r.form.name;
      EXPECT_GT(r.seconds(), 0);
      EXPECT_EQ(r.comm_seconds > 0, r.form.exchange) << r.form.name;
      EXPECT_GE(r.hidden(), 0);
    }
    EXPECT_EQ(report.find("compute")->buckets, 0);
    EXPECT_EQ(report.find("blocking")->hidden(), 0) << "nothing is hidden: everything is waited for";
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

}  // namespace
}  // namespace hpcdl::lab

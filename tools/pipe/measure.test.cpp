#include "tools/pipe/measure.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "hpcdl/error.h"
#include "hpcdl/pipe/costs_file.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl::lab::pipe {
namespace {

void small(train::RunConfig& c) {
  c.model.family = io::Family::llama;
  c.model.layers = 3, c.model.heads = 2, c.model.width = 32, c.model.context = 16, c.model.vocab = 300;
  c.train.batch = 2, c.train.accumulate = 4;
}

/// Every layer has measured times, which hpcdl pipe simulate reads, and the simulation is of the cut that runs.
TEST(measure, simulates_the_pipeline_that_it_times) {
  for (const auto* schedule : {"1f1b", "zero_bubble"})
    testing::run_ranks(2, [&](const comm::Group& world) {
      train::RunConfig c;
      small(c);
      c.parallel.schedule = schedule;
      Pool pool(1);
      const auto m = measure(world, pool, c, 3);
      EXPECT_EQ(m.steps.size(), 3u);
      EXPECT_GT(m.least(), 0);
      const auto& r = m.simulated;
      EXPECT_EQ(r.best.partition, engine::Partition(c.parallel.layers.begin(), c.parallel.layers.end()));
      ASSERT_EQ(r.costs->layers.size(), 5u);
      for (const auto& layer : r.costs->layers) {
        EXPECT_GT(layer.forward, 0) << layer.name;
        EXPECT_LT(layer.seconds(), 60) << layer.name;
        if (c.parallel.schedule == "1f1b") {
          EXPECT_EQ(layer.weight_gradient, 0) << layer.name;
        } else if (layer.weight_records > 0) {
          EXPECT_GT(layer.weight_gradient, 0) << layer.name;
        }
      }
      EXPECT_GT(r.costs->link.latency, 0);
      EXPECT_DOUBLE_EQ(m.ratio(), r.best.simulation.makespan / m.least());
      const auto json = nlohmann::json::parse(to_json(m).dump());
      EXPECT_EQ(engine::costs_from(json, "test").layers.size(), 5u);
      EXPECT_NE(to_text(m).find("simulated over measured"), std::string::npos);
    });
}

TEST(measure, takes_images_and_a_cut_of_its_own) {
  testing::run_ranks(2, [](const comm::Group& world) {
    train::RunConfig c;
    c.model.family = io::Family::simple_cnn;
    c.image.width = 4;
    c.train.batch = 2, c.train.accumulate = 2;
    c.parallel.layers = {1, 3};
    Pool pool(1);
    EXPECT_EQ(measure(world, pool, c, 1).simulated.best.partition, (engine::Partition{1, 3}));
  });
}

TEST(measure, refuses_a_gpu) {
  testing::run_ranks(2, [](const comm::Group& world) {
    train::RunConfig c;
    small(c);
    c.train.device = "cuda";
    Pool pool(1);
    EXPECT_THROW(measure(world, pool, c, 1), UsageError);
  });
}

}  // namespace
}  // namespace hpcdl::lab::pipe

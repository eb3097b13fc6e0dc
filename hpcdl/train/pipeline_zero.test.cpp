// Ranks that have different layers and divide the state of their layers among replicas.

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>

#include "hpcdl/models/family.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/testing/pipeline_runs.h"
#include "hpcdl/train/memory_plan.h"

namespace hpcdl::train {
namespace {

using testing::Change;
using testing::Pipeline;
using testing::Shape;

struct PipelineZero : Pipeline {
  void config(RunConfig& c, const std::string& name) override {
    Pipeline::config(c, name);
    c.train.steps = 12, c.train.eval_every = 6;
  }
  /// Two replicas of a pipeline.
  RunSummary train_replicas(const Shape& shape, int zero, const std::string& name, const Change& change = {},
                            std::int64_t stop_at = -1) {
    const auto configure = [&](RunConfig& c) {
      shape.set(c);
      c.train.batch = 2, c.parallel.dp = 2, c.parallel.zero = zero;
      if (change) change(c);
    };
    return train_on(2 * shape.pp, name, configure, stop_at);
  }
  static void four_rows(RunConfig& c) { c.train.batch = 4; }
};

TEST_F(PipelineZero, every_stage_and_schedule_has_the_same_bits) {
  train_on(1, "one", four_rows);
  const Shape first{"1f1b", 2, 1, 4};
  train_replicas(first, 0, "whole");
  expect_near("whole", "one");
  const Shape halves{"zero_bubble", 2, 1, 4}, chunks{"interleaved", 2, 2, 4}, both{"zbv", 2, 2, 4};
  for (const auto& [zero, shape] : {std::pair(1, first), {1, both}, {2, chunks}, {3, first}, {3, halves}, {3, both}}) {
    const auto name = fmt::format("{}-zero{}", shape.name(), zero);
    train_replicas(shape, zero, name);
    expect_same(name, "whole");
  }
}

TEST_F(PipelineZero, stages_that_share_an_embedding_divide_it_alike) {
  const auto tied = [](RunConfig& c) { c.model.tied = true, c.train.eps = 1e-5; };
  train_on(1, "one", [&](RunConfig& c) { tied(c), four_rows(c); });
  for (const Shape& shape : {Shape{"1f1b", 2, 1, 4}, {"zbv", 2, 2, 4}}) {
    train_replicas(shape, 0, shape.name(), tied);
    expect_near(shape.name(), "one");
    for (const int zero : {1, 2, 3}) {
      const auto name = fmt::format("{}-zero{}", shape.name(), zero);
      train_replicas(shape, zero, name, tied);
      expect_same(name, shape.name());
    }
  }
}

TEST_F(PipelineZero, composes_with_tensor_parallelism_and_mixed_precision) {
  const Shape shape{"zero_bubble", 2, 1, 4};
  for (const auto dtype : {Compute::f32, Compute::bf16, Compute::fp16}) {
    const auto of = [&](RunConfig& c) { c.train.dtype = dtype, c.train.steps = 6, c.train.eval_every = 3; };
    const auto prefix = std::string(io::enum_name(dtype));
    for (const int zero : {0, 1, 3})
      train_on(8, prefix + std::to_string(zero), [&](RunConfig& c) {
        shape.set(c), of(c);
        c.parallel.dp = c.parallel.tp = 2, c.parallel.zero = zero;
      });
    for (const int zero : {1, 3}) expect_same(prefix + std::to_string(zero), prefix + "0");
  }
}

TEST_F(PipelineZero, a_stopped_run_goes_on_on_any_mesh) {
  const Shape two{"1f1b", 2, 1, 4}, chunks{"interleaved", 2, 2, 4};
  train_replicas(two, 0, "whole");
  int number = 0;
  for (const auto& [before, after] : {std::pair{3, 1}, {2, 3}, {3, 0}}) {
    const auto name = "stopped" + std::to_string(number++);
    EXPECT_TRUE(train_replicas(two, before, name, {}, 7).stopped);
    EXPECT_EQ(train_replicas(chunks, after, name).first_step, 7);
    expect_same(name, "whole");
  }
  // Without a pipeline, and the other way; sums over ranks have the same bits.
  const auto replicas = [&](RunConfig& c) { c.parallel.dp = 2, c.parallel.zero = 3; };
  EXPECT_TRUE(train_replicas(two, 3, "a", {}, 7).stopped);
  EXPECT_EQ(train_on(2, "a", replicas).first_step, 7);
  expect_near("a", "whole");
  EXPECT_TRUE(train_on(2, "b", replicas, 7).stopped);
  EXPECT_EQ(train_replicas(chunks, 3, "b").first_step, 7);
  expect_near("b", "whole");
}

/// Of ranks without peers.
TEST(pipeline_zero, a_plan_divides_the_state_of_stages) {
  const auto ledger = [](int zero) {
    io::ModelConfig m{.layers = 4, .heads = 4, .width = 256, .context = 16, .vocab = 4000};
    m.family = io::Family::llama;
    models::resolve(m);
    auto model = models::LanguageModel::create(m, std::nullopt, true);
    StepOptions o{.batch = 1, .length = 16, .accumulate = true, .data = comm::Group::described(0, 2, "dp")};
    o.zero = zero;
    o.stages = {.group = comm::Group::described(0, 2, "pp"), .micros = 4};
    return plan_memory(model, o, 4, {});
  };
  const auto whole = ledger(0), moments = ledger(1), weights = ledger(3);
  EXPECT_LT(moments.optimizer, 0.6 * static_cast<double>(whole.optimizer));
  EXPECT_GE(moments.weights, whole.weights);
  EXPECT_LT(weights.weights, 0.6 * static_cast<double>(whole.weights));
  EXPECT_EQ(weights.optimizer, moments.optimizer);
  EXPECT_EQ(weights.gradients, moments.gradients) << "whole between micro-batches";
}

}  // namespace
}  // namespace hpcdl::train

// Pipelines of models other than dense text models: mixtures of experts, adapters, images.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "hpcdl/models/adapter_files.h"
#include "hpcdl/testing/pipeline_runs.h"

namespace hpcdl::train {
namespace {

using testing::Change;
using testing::Pipeline;
using testing::Shape;

const Shape kShapes[] = {{"1f1b", 2, 1, 4}, {"zero_bubble", 3, 1, 4}, {"interleaved", 2, 2, 4}, {"zbv", 2, 2, 4}};

/// Replicas of pipelines, whose state they divide or not.
struct ModelPipelines : Pipeline {
  /// Two replicas of one rank, then of pipelines: the same bits for all stages of ZeRO. Both train on `rows` rows.
  void expect_replicas_alike(std::int64_t rows, const Change& change = {}) {
    const auto on = [&](const std::string& name, int ranks, const Change& more) {
      train_on(ranks, name, [&](RunConfig& c) {
        if (change) change(c);
        c.train.batch = rows / 2, c.parallel.dp = 2;
        more(c);
      });
    };
    const Shape shape{"zero_bubble", 2, 1, 4};
    on("replicas", 2, [](RunConfig&) {});
    for (const int zero : {0, 1, 3}) {
      const auto name = "pipelines" + std::to_string(zero);
      on(name, 4, [&](RunConfig& c) { shape.set(c), c.parallel.zero = zero; });
      if (zero == 0) expect_near(name, "replicas");
      else expect_same(name, "pipelines0");
    }
  }
  void expect_resumes(const Change& change = {}) {
    const auto on = [&](const Shape* shape) {
      return [=](RunConfig& c) {
        if (change) change(c);
        if (shape) shape->set(c);
      };
    };
    EXPECT_TRUE(train_on(2, "stopped", on(&kShapes[0]), 7).stopped);
    EXPECT_EQ(train_on(3, "stopped", on(&kShapes[1])).first_step, 7);
    expect_same("stopped", "one");
    EXPECT_TRUE(train_on(2, "onwards", on(&kShapes[3]), 7).stopped);
    EXPECT_EQ(train_on(1, "onwards", on(nullptr)).first_step, 7);
    expect_same("onwards", "one");
  }
};

struct MixturePipelines : ModelPipelines {
  void config(RunConfig& c, const std::string& name) override {
    Pipeline::config(c, name);
    c.model.family = io::Family::qwen3_moe, c.model.experts = 4, c.model.chosen_experts = 2, c.model.expert_ffn = 48;
    c.model.balance = 0.05;
    c.train.steps = 12, c.train.eval_every = 6;
  }
};

/// The balance adds up what the routers of all layers choose, which travels through the stages.
TEST_F(MixturePipelines, have_the_bits_of_one_rank) {
  train_on(1, "one", [](RunConfig&) {});
  for (const auto& shape : kShapes) {
    train_on(shape.pp, shape.name(), [&](RunConfig& c) { shape.set(c); });
    expect_same(shape.name(), "one");
  }
  expect_resumes();
}

TEST_F(MixturePipelines, have_replicas_that_balance_experts_together) { expect_replicas_alike(4); }

struct AdapterPipelines : ModelPipelines {
  AdapterPipelines() {
    train_on(1, "base", [](RunConfig& c) { c.train.steps = 2; });
    adapting = true;
  }
  void config(RunConfig& c, const std::string& name) override {
    Pipeline::config(c, name);
    if (!adapting) return;
    c.model = {};
    c.init = (tmp.path() / "base").string();
    c.adapter.method = models::AdapterMethod::lora, c.adapter.r = 4, c.adapter.dropout = 0.1;
    c.train.steps = 12, c.train.eval_every = 6, c.train.lr = 1e-2;
  }
  std::filesystem::path weights_of(const std::string& name) const override {
    return Pipeline::weights_of(name) / models::kAdapterTensors;
  }
  bool adapting = false;
};

TEST_F(AdapterPipelines, have_the_bits_of_one_rank) {
  train_on(1, "one", [](RunConfig&) {});
  for (const auto& shape : kShapes) {
    train_on(shape.pp, shape.name(), [&](RunConfig& c) { shape.set(c); });
    expect_same(shape.name(), "one");
  }
  expect_resumes();
}

/// The first and the last stage have nothing to train.
TEST_F(AdapterPipelines, have_stages_without_anything_to_train) {
  train_on(1, "one", [](RunConfig&) {});
  for (const auto* schedule : {"1f1b", "zero_bubble"}) {
    train_on(3, schedule,
             [&](RunConfig& c) { c.parallel.pp = 3, c.parallel.schedule = schedule, c.parallel.layers = {1, 4, 1}; });
    expect_same(schedule, "one");
  }
}

TEST_F(AdapterPipelines, have_a_quantized_base) {
  const auto quantized = [](RunConfig& c) { c.base.format = models::BaseFormat::nf4; };
  train_on(1, "one", quantized);
  train_on(2, "two", [&](RunConfig& c) { quantized(c), kShapes[3].set(c); });
  expect_same("two", "one");
}

TEST_F(AdapterPipelines, have_replicas) { expect_replicas_alike(4); }

struct ImagePipelines : ModelPipelines {
  void config(RunConfig& c, const std::string& name) override {
    c.model.family = family;
    c.image.width = 4;
    c.data.procedural = 72;
    c.train.steps = 8, c.train.batch = 4, c.train.accumulate = 4, c.train.lr = 3e-3, c.train.warmup = 2,
    c.train.eval_every = 4, c.train.threads = 1;
    c.checkpoint.keep = 0;
    c.output = tmp.path() / name;
  }
  io::Family family = io::Family::simple_cnn;
};

TEST_F(ImagePipelines, have_the_bits_of_one_rank) {
  train_on(1, "one", [](RunConfig&) {});
  for (const auto& shape : kShapes) {
    train_on(shape.pp, shape.name(), [&](RunConfig& c) { shape.set(c); });
    expect_same(shape.name(), "one");
  }
  expect_resumes();
}

TEST_F(ImagePipelines, have_the_bits_of_one_rank_with_shortcuts_and_mixed_targets) {
  family = io::Family::resnet18;
  const auto change = [](RunConfig& c) {
    c.train.steps = 4, c.train.eval_every = 2, c.data.mixup = 0.4, c.train.label_smoothing = 0.1;
    c.train.recompute = true;
  };
  train_on(1, "one", change);
  train_on(2, "two", [&](RunConfig& c) { change(c), kShapes[3].set(c); });
  expect_same("two", "one");
}

TEST_F(ImagePipelines, have_replicas_with_common_statistics) {
  expect_replicas_alike(8, [](RunConfig& c) { c.sync_batch_norm = true; });
}

}  // namespace
}  // namespace hpcdl::train

// Activations and weights on a disk change no bit of what a training on a CPU learns.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "hpcdl/core/error.h"
#include "hpcdl/program/bytes.h"
#include "hpcdl/program/edit.h"
#include "hpcdl/testing/devices.h"
#include "hpcdl/testing/learned.h"
#include "hpcdl/testing/mesh_runs.h"
#include "hpcdl/testing/tune_toy.h"
#include "hpcdl/train/memory_plan.h"
#include "hpcdl/train/runs_for_tests.h"

namespace hpcdl::train {
namespace {

struct DiskPasses : ::testing::Test {
  void SetUp() override {
    if (io::lies_in_memory(tmp.path())) GTEST_SKIP() << "temporary files lie in memory: set TMPDIR to a disk";
  }
  Change moving(double share) const {
    return [this, share](StepOptions& o) { o.activations = {.folder = tmp.path(), .share = share, .smallest = 1}; };
  }
  Change reading(int resident) const {
    return [this, resident](StepOptions& o) {
      o.parameters = {.folder = tmp.path(), .resident = resident};
      o.optimizer_place = {.folder = tmp.path(), .group = 8192};
    };
  }
  Change both() const {
    return [this](StepOptions& o) { reading(0)(o), moving(1)(o); };
  }
  io::TempFolder tmp;
};

TEST_F(DiskPasses, activations_there_change_no_bit) {
  for (const auto family : {io::Family::gpt2, io::Family::llama})
    for (const auto& [what, change] : kKinds)
      EXPECT_EQ(train_text(family, {}, change, moving(1)), train_text(family, {}, change)) << what;
  const Change recompute = [](StepOptions& o) { o.forward.recompute = true; };
  const auto want = train_text(io::Family::llama, {}, recompute);
  for (const double share : {0.3, 1.0}) EXPECT_EQ(train_text(io::Family::llama, {}, recompute, moving(share)), want);
  EXPECT_EQ(train_images(moving(1)), train_images({}));
}

TEST_F(DiskPasses, weights_there_change_no_bit) {
  for (const auto family : {io::Family::gpt2, io::Family::llama})
    for (const auto& [what, change] : kKinds)
      EXPECT_EQ(train_text(family, {}, change, reading(0)), train_text(family, {}, change)) << what;
  const auto want = train_text(io::Family::llama, {}, {});
  for (const int resident : {1, 2, 5}) EXPECT_EQ(train_text(io::Family::llama, {}, {}, reading(resident)), want);
  EXPECT_EQ(train_text(io::Family::llama, {}, {}, both()), want);
  EXPECT_EQ(train_images(reading(0)), train_images({}));
}

/// Of a GPU whose weights lie on the host, and which the CPU updates.
TEST_F(DiskPasses, moments_of_a_gpu_there_change_no_bit) {
  const Change place = [this](StepOptions& o) {
    o.parameters.on_host = true;
    o.optimizer_place = {.folder = tmp.path(), .group = 8192};
  };
  for (const auto device : testing::devices())
    for (const auto& [what, change] : kKinds)
      EXPECT_EQ(train_text(io::Family::llama, device, change, place), train_text(io::Family::llama, device, change))
          << what;
}

TEST_F(DiskPasses, ranks_learn_the_same_bits) {
  for (const int zero : {0, 1, 2, 3}) EXPECT_EQ(train_ranks(2, zero, moving(1)), train_ranks(2, zero, {})) << zero;
  EXPECT_EQ(train_ranks(3, 0, both()), train_ranks(3, 0, {}));
  EXPECT_THROW(train_ranks(2, 1, reading(0)), Error) << "values that ranks divide";
}

/// A model goes from a step with its weights on a disk to one without, and back.
TEST_F(DiskPasses, a_model_outlives_its_place) {
  const auto train = [&](bool moves) {
    auto model = models::LanguageModel::create(small_model(io::Family::llama), 3, true);
    Pool pool(1);
    Learned l;
    for (int i = 0; i < 4; ++i) {
      StepOptions o{.batch = 2, .length = 16};
      if (moves && i % 2 == 0) reading(i / 2)(o);
      TrainStep step(model, pool, o);
      take_steps(step, o, i, i + 1, l);
      note_state(l, step);
    }
    return l;
  };
  EXPECT_EQ(train(true), train(false));
}

TEST_F(DiskPasses, edits_can_be_undone) {
  const auto programs = [&](const Change& place) {
    auto model = models::LanguageModel::create(small_model(io::Family::llama), {}, true);
    Pool pool(1);
    Stream s(pool);
    StepOptions o{.batch = 2, .length = 16};
    if (place) place(o);
    const StepPrograms p(model, o, s);
    return p.first()->planned->program;
  };
  const auto plain = to_bytes(programs({}));
  EXPECT_EQ(to_bytes(strip(programs(moving(1)))), plain);
  EXPECT_EQ(to_bytes(strip(programs(reading(0)))), plain);
  EXPECT_EQ(to_bytes(strip(strip(programs(both())))), plain);
}

/// Peak memory is what the plan says: the weights of a few blocks, and what a few blocks leave for backward.
TEST_F(DiskPasses, the_plan_says_what_is_in_memory) {
  const auto ledger = [&](const Change& place) {
    io::ModelConfig c = small_model(io::Family::llama);
    c.layers = 16, c.vocab = 64;
    auto described = models::LanguageModel::create(c, {}, true);
    StepOptions o{.batch = 4, .length = 16};
    if (place) place(o);
    return plan_memory(described, o, 1, {});
  };
  const auto kept = ledger({}), moved = ledger(moving(1)), disk = ledger(reading(0));
  EXPECT_LT(moved.activations, kept.activations / 2);
  EXPECT_GT(moved.moved.bytes, kept.activations / 2);
  EXPECT_EQ(moved.moved.kept + moved.moved.bytes, ledger(moving(0.5)).moved.kept + ledger(moving(0.5)).moved.bytes);
  EXPECT_EQ(disk.weights + disk.optimizer, 0);
  EXPECT_EQ(disk.on_disk, kept.weights + kept.optimizer);
  EXPECT_LT(disk.activations, kept.activations + kept.weights / 2);
  EXPECT_NEAR(static_cast<double>(ledger(reading(8)).weights), static_cast<double>(kept.weights) / 2,
              static_cast<double>(kept.weights) / 8);
}

struct DiskPassRuns : testing::MeshRuns {
  void SetUp() override {
    if (io::lies_in_memory(tmp.path())) GTEST_SKIP() << "temporary files lie in memory: set TMPDIR to a disk";
  }
  void put_on_disk(RunConfig& c) const {
    c.offload.optimizer = c.offload.activations = Tier::disk;
    if (c.parallel.zero == 0) c.offload.parameters = Tier::disk;
    c.offload.folder = tmp.path();
    c.model.width = 64, c.train.batch *= 4;  // activations of 64 KiB
  }
  void expect_same(const std::string& name, const parallel::MeshShape& mesh, const std::function<void(RunConfig&)>& f) {
    run_on(mesh, name + ".kept", [&](RunConfig& c) {
      f(c), put_on_disk(c);
      c.offload = {};
    });
    run_on(mesh, name + ".disk", [&](RunConfig& c) { f(c), put_on_disk(c); });
    const auto kept = tmp / (name + ".kept"), disk = tmp / (name + ".disk");
    expect_same_file(kept / "model/model.safetensors", disk / "model/model.safetensors");
    EXPECT_EQ(placeless_metrics(disk), placeless_metrics(kept)) << name;
  }
};

TEST_F(DiskPassRuns, write_the_same_files) {
  expect_same("alone", {}, [](RunConfig& c) { c.train.accumulate = 2, c.train.recompute = true; });
  expect_same("zero", {.dp = 2}, [](RunConfig& c) { c.parallel.zero = 3; });
  expect_same("tp", {.tp = 2}, [](RunConfig&) {});
  expect_same("cp", {.cp = 2}, [](RunConfig&) {});
  expect_same("fp8", {}, [](RunConfig& c) { c.train.dtype = Compute::fp8_emu, c.model.layers = 3; });
  expect_same("mixture", {}, [](RunConfig& c) {
    c.model.family = io::Family::mixtral, c.model.experts = 4, c.model.chosen_experts = 2;
  });
}

TEST_F(DiskPassRuns, resume_in_any_place) {
  const auto change = [&](bool disk) {
    return [this, disk](RunConfig& c) {
      put_on_disk(c);
      if (!disk) c.offload = {};
    };
  };
  run_on({}, "whole", change(false));
  for (const bool first : {false, true}) {
    const auto name = first ? "from disk" : "to disk";
    EXPECT_TRUE(run_on({}, name, change(first), 3).stopped);
    EXPECT_EQ(run_on({}, name, change(!first)).first_step, 3);
    expect_same_file(tmp / name / "model/model.safetensors", tmp / "whole" / "model/model.safetensors");
  }
}

/// The layers of a frozen base, quantised or not, come from the disk in forward and in backward.
TEST_F(DiskPassRuns, adapters_learn_the_same_beside_a_base_on_the_disk) {
  run_on({}, "base", [](RunConfig& c) { c.train.steps = 2, c.model.width = 64, c.model.ffn = 192; });
  for (const auto format : {models::BaseFormat::none, models::BaseFormat::nf4, models::BaseFormat::int8}) {
    const auto tune = [&](bool disk) {
      const auto name = std::string(io::enum_name(format)) + (disk ? ".disk" : ".kept");
      testing::tune_toy(tmp, name, 1, [&](RunConfig& c) {
        c.adapter.method = models::AdapterMethod::lora, c.adapter.r = 4, c.base.format = format;
        c.train.steps = 4;
        if (!disk) return;
        c.offload.optimizer = c.offload.parameters = Tier::disk;
        c.offload.folder = tmp.path();
      });
      return tmp / name;
    };
    const auto kept = tune(false), disk = tune(true);
    expect_same_file(kept / "model/adapter_model.safetensors", disk / "model/adapter_model.safetensors");
    EXPECT_EQ(placeless_metrics(disk), placeless_metrics(kept));
  }
}

}  // namespace
}  // namespace hpcdl::train

// Runs that train an adapter.

#include <gtest/gtest.h>

#include <cmath>

#include "hpcdl/io/crc32c.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/models/adapter_files.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/testing/tune_toy.h"
#include "hpcdl/train/runs_for_tests.h"
#include "hpcdl/train/train_for_tests.h"

namespace hpcdl::train {
namespace {

namespace fs = std::filesystem;

using Change = std::function<void(RunConfig&)>;

struct AdapterRuns : ::testing::Test {
  /// A toy model in tmp/base/model.
  AdapterRuns() {
    RunConfig c;
    toy_config(c, tmp, "base");
    c.train.steps = 2;
    run(c, {});
    crc = base_crc();
  }
  ~AdapterRuns() override { EXPECT_EQ(base_crc(), crc) << "a base is never written"; }

  std::uint32_t base_crc() const { return io::crc32c(io::read_file(tmp / "base" / "model" / "model.safetensors")); }

  RunSummary tune(const std::string& name, const Change& change = {}, int ranks = 1) {
    return testing::tune_toy(tmp, name, ranks, [&](RunConfig& c) {
      c.adapter.method = models::AdapterMethod::lora, c.adapter.r = 4;
      c.train.batch = 4 / ranks, c.train.lr = 1e-2;
      if (change) change(c);
    });
  }
  fs::path file(const std::string& name) const { return tmp / name / "model" / models::kAdapterTensors; }

  io::TempFolder tmp;
  std::uint32_t crc = 0;
};

TEST_F(AdapterRuns, checkpoints_hold_the_adapter_and_the_fingerprint_of_the_base) {
  const auto done = tune("lora");
  EXPECT_LT(done.eval_loss, tune("still", [](RunConfig& c) { c.train.lr = 0, c.train.warmup = 0; }).eval_loss);
  const auto checkpoint = tmp / "lora" / "checkpoints" / "step_00000006";
  for (const auto* name : {"model.safetensors", "optim-rank0.safetensors"}) {
    const auto file = io::TensorFolder::open(checkpoint / name);
    for (const auto& t : file.tensors()) EXPECT_NE(t.name.find(".lora_"), std::string::npos) << t.name;
  }
  const auto base = models::read_adapter_base(checkpoint);
  ASSERT_TRUE(base);
  EXPECT_EQ(base, models::read_adapter_base(tmp / "lora" / "model"));
  EXPECT_TRUE(models::is_adapter_folder(tmp / "lora" / "model"));
  auto opened = models::LanguageModel::open(tmp / "base" / "model", {}, {.adapter = tmp / "lora" / "model"});
  EXPECT_EQ(opened.config().layers, 2);
}

TEST_F(AdapterRuns, a_stopped_run_goes_on_as_if_it_had_not_been) {
  for (const auto dtype : {Compute::f32, Compute::bf16}) {
    const auto kind = std::string(io::enum_name(dtype));
    const Change change = [&](RunConfig& c) {
      c.train.dtype = dtype, c.adapter.dropout = 0.1, c.train.accumulate = 2, c.checkpoint.every = 3;
    };
    tune("whole" + kind, change);
    tune("half" + kind, change);
    fs::remove_all(tmp / ("half" + kind) / "checkpoints" / "step_00000006");
    EXPECT_EQ(tune("half" + kind, change).first_step, 3);
    expect_same_file(file("whole" + kind), file("half" + kind));
  }
}

TEST_F(AdapterRuns, recomputing_changes_no_bit) {
  tune("plain", [](RunConfig& c) { c.adapter.dropout = 0.1; });
  tune("again", [](RunConfig& c) { c.adapter.dropout = 0.1, c.train.recompute = true; });
  expect_same_file(file("plain"), file("again"));
}

TEST_F(AdapterRuns, ranks_train_what_one_rank_trains) {
  const Change keeps = [](RunConfig& c) { c.adapter.keep = {"embed_tokens", "norm"}, c.train.lr = 3e-3; };
  const auto alone = tune("one", keeps);
  for (const auto& [name, dp, tp, sequence] :
       {std::tuple{"dp", 2, 1, false}, {"tp", 1, 2, false}, {"mesh", 2, 2, false}, {"sequence", 1, 2, true}}) {
    const auto many = tune(
        name,
        [&, shares = dp, splits = tp, seq = sequence](RunConfig& c) {
          keeps(c), c.train.batch = 4 / shares, c.parallel.tp = splits, c.parallel.sequence = seq;
        },
        dp * tp);
    EXPECT_NEAR(many.loss, alone.loss, 1e-5 * alone.loss) << name;
    EXPECT_LT(weights_apart(file("one"), file(name)), 2e-5) << name;
  }
}

TEST_F(AdapterRuns, checkpoints_of_another_base_or_method_are_refused) {
  tune("lora");
  const auto refused = [&](const Change& change) { return error_of([&] { tune("lora", change); }); };
  const Change longer = [](RunConfig& c) { c.train.steps = 8; };
  EXPECT_EQ(refused(longer), "no error");
  EXPECT_NE(refused([](RunConfig& c) { c.adapter.alpha = 7; }).find("holds an adapter of scale 8"), std::string::npos);
  EXPECT_NE(refused([](RunConfig& c) { c.adapter = {}; }).find("but this run trains a whole model"), std::string::npos);
  RunConfig other;
  toy_config(other, tmp, "other");
  other.train.steps = 2, other.train.seed = 2;
  run(other, {});
  EXPECT_NE(refused([&](RunConfig& c) { c.init = (tmp / "other").string(); }).find("with the fingerprint"),
            std::string::npos);
  EXPECT_NE(error_of([&] { tune("none", [](RunConfig& c) { c.init = ""; }); }).find("set model.init to its folder"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              tune("none", [](RunConfig& c) { c.adapter.method = models::AdapterMethod::none; });
            }).find("adapter.r = 4 is for adapters, and adapter.method is none"),
            std::string::npos);
}

}  // namespace
}  // namespace hpcdl::train

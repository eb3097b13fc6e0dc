// Training on a mesh, data x tensor, of ranks that are threads here.

#include <gtest/gtest.h>
#include <signal.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <sstream>

#include "hpcdl/instance.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/python_for_tests.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/testing/mesh_runs.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl::train {
namespace {

namespace fs = std::filesystem;

struct Mesh : testing::MeshRuns {
  /// A run of dp x tp ranks into tmp/NAME; returns the result of rank 0.
  RunSummary train_on(int dp, int tp, const std::string& name, const std::function<void(RunConfig&)>& change,
                      std::int64_t stop_at = -1) {
    return run_on({.dp = dp, .tp = tp}, name, change, stop_at);
  }
};

/// Asks the run to stop during its evaluation, and counts what is still evaluated.
struct StopsInEvaluation : Observer {
  int batches = 0;
  bool first = false;
  void begin(Stage s) override {
    if (s != Stage::evaluate) return;
    if (batches++ == 0 && first) ::raise(SIGTERM);
  }
};

TEST_F(Mesh, an_evaluation_does_not_keep_a_run_that_is_asked_to_stop) {
  for (const auto& [dp, tp] : {std::pair{1, 1}, {2, 1}, {1, 2}}) {
    const auto name = fmt::format("asked{}x{}", dp, tp);
    testing::run_ranks(dp * tp, [&, dp = dp, tp = tp](const comm::Group& world) {
      RunConfig c;
      toy_config(c, tmp, name);
      c.train.batch = 2, c.train.threads = 1, c.parallel.dp = dp, c.parallel.tp = tp;
      StopsInEvaluation observer;
      observer.first = world.rank() == 0;
      const auto summary =
          run(c, {.console = {}, .world = world, .speed_of_light = {}, .after_step = {}, .observer = &observer});
      EXPECT_TRUE(summary.stopped);
      EXPECT_EQ(summary.step, 2) << "the step of the evaluation";
      EXPECT_LT(observer.batches, world.rank() == 0 || tp > 1 ? 2 : 4);
      EXPECT_TRUE(std::isnan(summary.eval_loss));
    });
    EXPECT_TRUE(numbers(name, "eval_loss").empty());
    EXPECT_TRUE(fs::exists(tmp.path() / name / "checkpoints/step_00000002/DONE"));
  }
}

TEST_F(Mesh, every_shape_trains_what_one_rank_trains) {
  const auto fifty = [](RunConfig& c) {
    c.train.steps = 50, c.train.eval_every = 25, c.train.dropout = 0.1, c.train.lr = 1e-3, c.train.warmup = 50,
    c.train.accumulate = 2;
  };
  train_on(1, 1, "one", fifty);
  for (const bool sequence : {false, true}) {
    for (const auto& [dp, tp] : {std::pair{1, 2}, {2, 2}, {1, 4}, {2, 4}, {4, 2}}) {
      const auto name = fmt::format("{}x{}{}", dp, tp, sequence ? "s" : "");
      train_on(dp, tp, name, [&](RunConfig& c) { fifty(c), c.parallel.sequence = sequence; });
      expect_parity(name, "one");
    }
  }
}

/// The first weight of the first forward pass.
float* first_weight(const std::vector<const Instance*>& programs) {
  const Program& p = programs.front()->program();
  for (const auto& record : p.records)
    for (std::uint32_t i = 0; i < record.operand_count; ++i) {
      const Operand& o = p.operands[record.operands + i];
      if (o.slot < 0 || o.access != Access::read || record.phase != hpcdl::Phase::forward) continue;
      const Slot& slot = p.slots[static_cast<std::size_t>(o.slot)];
      if (slot.kind == SlotKind::state && slot.spec.dtype == DType::f32)
        return programs.front()->bindings().memory(slot.name).ptr<float>();
    }
  return nullptr;
}

/// A bit of a weight of one rank flips between two saves: the run ends at the next save, which is not written, and
/// continues from the previous one as if nothing had happened.
TEST_F(Mesh, a_checkpoint_of_two_models_is_never_written) {
  const auto saves = [](RunConfig& c) { c.train.steps = 12, c.checkpoint.every = 4, c.checkpoint.keep = 9; };
  train_on(2, 1, "well", saves);
  const auto errors = testing::rank_errors(2, [&](const comm::Group& world) {
    RunConfig c;
    toy_config(c, tmp, "mixed");
    c.model.heads = 4;
    c.train.batch = 4, c.train.threads = 1, c.parallel.dp = 2;
    saves(c);
    Hooks hooks;
    hooks.world = world;
    float* weight = nullptr;
    hooks.tuned_ways = [&](const std::vector<const Instance*>& programs) -> std::shared_ptr<const Ways> {
      weight = first_weight(programs);
      return nullptr;
    };
    hooks.after_step = [&](std::int64_t step) {
      if (world.rank() == 1 && step == 6) *weight = std::bit_cast<float>(std::bit_cast<std::uint32_t>(*weight) ^ 1);
    };
    run(c, hooks);
  });
  for (const auto& e : errors) {
    EXPECT_NE(e.find("the ranks no longer hold the same model: weight "), std::string::npos) << e;
    EXPECT_NE(e.find("step 8 is not saved, and the last checkpoint is of step 4"), std::string::npos) << e;
  }
  const auto folder = tmp.path() / "mixed/checkpoints";
  EXPECT_TRUE(fs::exists(folder / "step_00000004/DONE"));
  for (const auto& entry : io::list_folder(folder))
    EXPECT_EQ(entry.filename().string().find("step_00000008"), std::string::npos) << entry;
  train_on(2, 1, "mixed", saves);
  EXPECT_EQ(io::read_file(tmp.path() / "mixed/model/model.safetensors"),
            io::read_file(tmp.path() / "well/model/model.safetensors"));
}

/// The folder that four ranks have written, each some of the files, is a valid model for transformers: its loss equals
/// ours.
TEST_F(Mesh, transformers_reads_the_checkpoint_of_many_ranks) {
  const auto python = io::find_python("transformers, torch, safetensors");
  if (!python) GTEST_SKIP() << "no Python with transformers and torch; set HPCDL_PYTHON";
  train_on(2, 2, "many", [](RunConfig& c) { c.train.steps = 3; });
  const auto checkpoint = tmp.path() / "many/checkpoints/step_00000003";
  const auto folder = io::TensorFolder::open(checkpoint);
  ASSERT_GE(folder.shards().size(), 4u);
  const auto script = fmt::format(
      "import torch, transformers\n"
      "def load(folder):\n"
      "  m, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, "
      "dtype=torch.float32)\n"
      "  assert not info['missing_keys'] and not info['unexpected_keys'], info\n"
      "  return m\n"
      "ids = torch.arange(8).reshape(1, 8)\n"
      "many, one = load('{}'), load('{}')\n"
      "assert torch.equal(many(ids).logits, one(ids).logits)\n",
      checkpoint.string(), (tmp.path() / "many/model").string());
  bool ok = false;
  const auto said = io::run_python(*python, script, "", ok);
  EXPECT_TRUE(ok) << said;
}

/// A checkpoint of one mesh can be used by any other.
TEST_F(Mesh, a_stopped_run_goes_on_on_any_mesh) {
  const auto plain = [](RunConfig& c) { c.train.lr = 1e-3, c.train.warmup = 6; };
  train_on(1, 1, "one", plain);
  for (const auto& [dp, tp] : {std::pair{2, 2}, {1, 4}, {4, 1}, {1, 1}}) {
    const auto name = fmt::format("from2x2to{}x{}", dp, tp);
    EXPECT_TRUE(train_on(2, 2, name, plain, 3).stopped);
    EXPECT_EQ(train_on(dp, tp, name, plain).first_step, 3);
    const auto from_one = fmt::format("from1to{}x{}", dp, tp);
    EXPECT_TRUE(train_on(1, 1, from_one, plain, 3).stopped);
    train_on(dp, tp, from_one, plain);
    for (const auto& run : {name, from_one}) {
      const auto loss = numbers(run, "loss"), want = numbers("one", "loss");
      EXPECT_NEAR(loss.back(), want.back(), 1e-5 * want.back()) << run;
    }
  }
}

}  // namespace
}  // namespace hpcdl::train

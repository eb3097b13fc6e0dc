// Training with moments of 8 bits.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "hpcdl/models/family.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/testing/mesh_runs.h"
#include "hpcdl/testing/tune_toy.h"
#include "hpcdl/testing/zero_runs.h"
#include "hpcdl/train/check_config.h"
#include "hpcdl/train/memory_plan.h"
#include "hpcdl/train/plan_run.h"
#include "hpcdl/train/runs_for_tests.h"
#include "hpcdl/train/train_for_tests.h"

namespace hpcdl::train {
namespace {

namespace fs = std::filesystem;

void in_8_bits(StepOptions& o) { o.optimizer = AdamW8::Args{}; }

/// Shares of a tensor begin with its blocks.
TEST(moments, every_stage_of_zero_learns_the_same_bits) {
  for (const auto family : {io::Family::gpt2, io::Family::llama})
    for (const int n : {2, 3, 5}) {
      const auto want = train_text(family, {.dp = n}, 0, 20, in_8_bits);
      EXPECT_FALSE(want == train_text(family, {.dp = n}, 0, 20)) << "of f32";
      for (const int zero : {1, 2, 3}) {
        const auto got = train_text(family, {.dp = n}, zero, 20, in_8_bits);
        expect_same(got, want, std::to_string(n) + " ranks, zero " + std::to_string(zero));
        std::int64_t moments = 0;
        for (const auto& rank : got) moments += rank.moments;
        EXPECT_EQ(moments, want[0].moments) << "every moment and every scale is on one rank";
      }
    }
}

TEST(moments, micro_batches_types_and_clipping_go_together_with_zero) {
  const std::pair<const char*, Change> kinds[] = {
      {"micro-batches", [](StepOptions& o) { o.accumulate = true; }},
      {"bf16 with copies", [](StepOptions& o) { o.forward.compute = DType::bf16, o.copies = true; }},
      {"fp16, whose first steps are skipped",
       [](StepOptions& o) {
         o.forward.compute = DType::f16, o.copies = true;
         o.scaler = GradScaler::Options{.init_scale = 0x1p30f};
       }},
      {"clipping and recompute", [](StepOptions& o) { o.clip = 0.05f, o.forward.recompute = true; }},
  };
  for (const auto& [what, change] : kinds) {
    const Change both = [&, more = change](StepOptions& o) { in_8_bits(o), more(o); };
    const auto want = train_text(io::Family::gpt2, {.dp = 3}, 0, 6, both);
    for (const int zero : {1, 3}) expect_same(train_text(io::Family::gpt2, {.dp = 3}, zero, 6, both), want, what);
  }
}

using ChangeRun = std::function<void(RunConfig&)>;

void coded(RunConfig& c) { c.train.moments = Moments::eight_bit; }

struct MomentRuns : testing::MeshRuns {
  std::string checkpoint(const std::string& run, const char* step) const {
    return (tmp.path() / run / "checkpoints" / step).string();
  }
};

TEST_F(MomentRuns, go_on_as_if_they_had_not_been_stopped) {
  const std::pair<const char*, ChangeRun> kinds[] = {
      {"f32", coded},
      {"bf16", [](RunConfig& c) { coded(c), c.train.dtype = Compute::bf16, c.train.accumulate = 2; }},
      {"late save", [](RunConfig& c) { coded(c), c.checkpoint.asynchronous = false; }}};
  for (const auto& [name, change] : kinds) {
    run_on({}, name, change);
    const auto half = std::string(name) + " in halves";
    EXPECT_TRUE(run_on({}, half, change, 3).stopped);
    EXPECT_EQ(run_on({}, half, change).first_step, 3);
    expect_same_run(tmp.path() / name, tmp.path() / half, "step_00000006");
  }
  // What the files hold.
  const auto file = io::TensorFolder::open(fs::path(checkpoint("f32", "step_00000006")) / "optim-rank0.safetensors");
  EXPECT_EQ(file.at("model.embed_tokens.weight.m").spec(), (Spec{{300, 32}, DType::i8}));
  EXPECT_EQ(file.at("model.embed_tokens.weight.v").spec(), (Spec{{300, 32}, DType::u8}));
  EXPECT_EQ(file.at("model.embed_tokens.weight.v.scale").spec(), (Spec{{38}, DType::f32}));
  EXPECT_EQ(file.at("model.norm.weight.m").spec(), (Spec{{32}, DType::f32})) << "small tensors keep f32";
}

/// As with moments of f32, the bits are those of a run that changes its ranks at the same step and divides nothing.
TEST_F(MomentRuns, have_checkpoints_for_any_ranks_that_divide_state) {
  const auto both = [&](const char* name, int before, int after) {
    const auto with = [](int zero) { return [zero](RunConfig& c) { coded(c), c.parallel.zero = zero; }; };
    EXPECT_TRUE(run_on({.dp = 4}, name, with(before), 3).stopped);
    EXPECT_EQ(run_on({.dp = 2}, name, with(after)).first_step, 3);
  };
  both("whole", 0, 0), both("divided", 2, 1), both("from divided", 1, 0), both("to sharded", 0, 3);
  for (const char* name : {"divided", "from divided", "to sharded"})
    expect_same_file(tmp.path() / name / "model/model.safetensors", tmp.path() / "whole/model/model.safetensors");
}

/// Rows of 512 elements, of which each of two ranks has 256 where it has columns.
void wide(RunConfig& c) {
  coded(c);
  c.model.layers = 1, c.model.width = 512, c.model.ffn = 512, c.train.eval_batches = 1, c.train.lr = 1e-3;
}

/// Ranks along tp and pp add up in another order, and a sum between two codes may be rounded to the other one.
TEST_F(MomentRuns, of_ranks_that_share_layers_follow_those_of_one) {
  run_on({}, "one", wide);
  const auto change = [](int zero) { return [zero](RunConfig& c) { wide(c), c.parallel.zero = zero; }; };
  run_on({.tp = 2}, "tp", change(0)), run_on({.dp = 2, .tp = 2}, "mesh", change(1));
  EXPECT_TRUE(run_on({.tp = 2}, "moved", change(0), 3).stopped);
  EXPECT_EQ(run_on({.dp = 2}, "moved", change(2)).first_step, 3);
  EXPECT_TRUE(run_on({}, "to tp", change(0), 3).stopped);
  EXPECT_EQ(run_on({.tp = 2}, "to tp", change(0)).first_step, 3);
  for (const char* name : {"tp", "mesh", "moved", "to tp"}) {
    const auto got = numbers(name, "loss"), want = numbers("one", "loss");
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-4 * want[i]) << name << ' ' << i;
  }
}

TEST_F(MomentRuns, of_a_pipeline_are_those_of_one_rank) {
  const auto change = [](RunConfig& c) { coded(c), c.train.accumulate = 2; };
  run_on({}, "one", change), run_on({.pp = 2}, "pp", change);
  const auto got = numbers("pp", "loss"), want = numbers("one", "loss");
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5 * want[i]) << i;
}

TEST_F(MomentRuns, of_ranks_that_cut_blocks_are_refused) {
  const auto errors = testing::rank_errors(2, [&](const comm::Group& world) {
    RunConfig c;
    toy_config(c, tmp, "cut");
    coded(c);
    c.model.width = 256, c.model.heads = 4, c.model.layers = 1, c.parallel.tp = 2;
    Hooks hooks;
    hooks.world = world;
    run(c, hooks);
  });
  for (const auto& e : errors)
    EXPECT_NE(e.find("o_proj.weight\" (256, 256) is divided among ranks inside of a block"), std::string::npos) << e;
}

TEST_F(MomentRuns, of_another_type_are_not_taken_for_their_own) {
  const auto f32 = [](RunConfig&) {};
  const std::tuple<const char*, ChangeRun, ChangeRun, const char*> ways[] = {
      {"from f32", f32, coded, "expected I8 (300, 32), found F32 (300, 32): resume with the configuration"},
      {"to f32", coded, f32, "expected F32 (300, 32), found I8 (300, 32): resume with the configuration"}};
  for (const auto& [name, before, after, message] : ways) {
    EXPECT_TRUE(run_on({}, name, before, 3).stopped);
    const auto text = error_of([&, n = name, &change = after] { run_on({}, n, change); });
    EXPECT_NE(text.find(message), std::string::npos) << text;
    EXPECT_NE(text.find("weight.m"), std::string::npos) << text;
  }
}

TEST_F(MomentRuns, end_as_low_as_those_of_f32) {
  const auto change = [](RunConfig& c) {
    c.model.width = 64, c.train.steps = 300, c.train.eval_every = 300, c.train.eval_batches = 0, c.train.warmup = 20;
  };
  const auto f32 = run_on({}, "f32", change), eight = run_on({}, "8bit", [&](RunConfig& c) { change(c), coded(c); });
  EXPECT_NEAR(eight.eval_loss, f32.eval_loss, 0.005 * f32.eval_loss);
  EXPECT_NE(eight.eval_loss, f32.eval_loss);
  const auto start = numbers("f32", "loss").front();
  EXPECT_LT(f32.eval_loss, 0.6 * start) << "it has learned";
  std::printf("loss %.5f with f32, %.5f with 8 bits\n", f32.eval_loss, eight.eval_loss);
}

TEST_F(MomentRuns, end_with_a_reason_if_numbers_are_not_finite) {
  const auto text = error_of([&] {
    run_on({}, "bad", [](RunConfig& c) {
      coded(c);
      c.train.lr = 1e3, c.train.warmup = 0, c.train.weight_decay = 100, c.train.clip = 0, c.train.steps = 60;
    });
  });
  EXPECT_NE(text.find("not finite; the first bad tensor"), std::string::npos) << text;
}

TEST_F(MomentRuns, of_adapters_and_what_is_trained_beside_them) {
  run_on({}, "base", [](RunConfig& c) { c.train.steps = 2; });
  const auto change = [](RunConfig& c) {
    coded(c);
    c.adapter.method = models::AdapterMethod::lora, c.adapter.r = 4, c.adapter.keep = {"embed_tokens"};
    c.checkpoint.every = 3;
  };
  testing::tune_toy(tmp, "whole", 1, change), testing::tune_toy(tmp, "half", 1, change);
  fs::remove_all(checkpoint("half", "step_00000006"));
  EXPECT_EQ(testing::tune_toy(tmp, "half", 1, change).first_step, 3);
  for (const char* name : {"model.safetensors", "optim-rank0.safetensors"})
    expect_same_file(fs::path(checkpoint("whole", "step_00000006")) / name,
                     fs::path(checkpoint("half", "step_00000006")) / name);
  const auto file = io::TensorFolder::open(fs::path(checkpoint("whole", "step_00000006")) / "optim-rank0.safetensors");
  int codes = 0;
  for (const auto& t : file.tensors()) codes += file.at(t.name).dtype() == DType::i8;
  EXPECT_EQ(codes, 1) << "the table of tokens";
}

/// The plan for a model without memory equals what a step takes, 2.03 bytes a weight.
TEST(moments, take_the_memory_that_is_planned) {
  RunConfig c;
  coded(c);
  c.model.family = io::Family::llama;
  c.model.layers = 2, c.model.heads = 2, c.model.width = 256, c.model.context = 32, c.model.vocab = 300;
  models::resolve(c.model);
  auto described = models::LanguageModel::create(c.model, std::nullopt, true),
       model = models::LanguageModel::create(c.model, 1, true);
  const auto ledger = plan_memory(described, step_options(c), 1, {});
  Pool pool(1);
  const TrainStep step(model, pool, step_options(c));
  std::int64_t held = 0;
  for (const auto& t : step.optimizer_state()) held += t.tensor.bytes();
  EXPECT_EQ(ledger.optimizer, held);
  const auto each = static_cast<double>(held) / static_cast<double>(model.parameter_count());
  EXPECT_GT(each, 2.03);
  EXPECT_LT(each, 2.05) << "norms keep f32";
}

std::string refusal(const ChangeRun& change) {
  RunConfig c;
  c.train.moments = Moments::eight_bit;
  change(c);
  return error_of([&] { check_config(c); });
}

TEST(moments, are_refused_where_nothing_updates_them) {
  EXPECT_NE(refusal([](RunConfig& c) { c.train.device = "cuda"; }).find("is for CPUs"), std::string::npos);
  EXPECT_NE(refusal([](RunConfig& c) {
              c.train.optimizer = OptimizerKind::sgd;
            }).find("train.moments = \"8bit\" is for adamw, and train.optimizer is sgd"),
            std::string::npos);
  EXPECT_NE(refusal([](RunConfig& c) {
              c.offload.optimizer = Tier::disk, c.offload.folder = "/tmp";
            }).find("moves moments of f32, and train.moments is 8bit"),
            std::string::npos);
  EXPECT_EQ(refusal([](RunConfig&) {}), "no error");
  EXPECT_EQ(refusal([](RunConfig& c) { c.offload.optimizer = Tier::host; }), "no error") << "the same memory on a CPU";
}

}  // namespace
}  // namespace hpcdl::train

// Training with emulated products of MXFP4.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/mesh_runs.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/check_config.h"
#include "hpcdl/train/runs_for_tests.h"
#include "hpcdl/train/train_for_tests.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {
namespace {

using models::Fp8Options;
using models::LanguageModel;
using models::tiny_ids;

constexpr Fp8Options kEmulated{.on = true, .mx4 = true};

io::ModelConfig config_of(io::Family family) {
  io::ModelConfig c;
  c.family = family;
  c.layers = 4, c.heads = 4, c.width = 64, c.ffn = 128, c.context = 32, c.vocab = 128;
  c.tied = family == io::Family::gpt2;
  models::resolve(c);
  return c;
}

struct Training {
  io::Family family = io::Family::llama;
  Fp8Options options = kEmulated;
  int steps = 4, micros = 1;
  std::function<void(StepOptions&)> change = {};
};

struct Learned {
  std::vector<double> losses;
  std::vector<float> weights;
  bool operator==(const Learned&) const = default;
};

Learned train(const Training& run, const comm::Group& data = {}) {
  Pool pool(2);
  auto model = LanguageModel::create(config_of(run.family), 3, true, {}, run.options);
  StepOptions o{
      .batch = 2, .length = 16, .accumulate = run.micros > 1, .forward = {.compute = DType::bf16}, .data = data};
  if (run.change) run.change(o);
  TrainStep step(model, pool, o);
  Learned l;
  for (int i = 0; i < run.steps; ++i) {
    for (int m = 0; m < run.micros; ++m) {
      const auto seed = static_cast<std::uint32_t>(5 + 10 * m + 100 * data.rank());
      step.accumulate(tiny_ids(seed), tiny_ids(seed + 1), i, m, m + 1 == run.micros);
    }
    l.losses.push_back(step.update(1e-3, 32 * run.micros).loss);
  }
  step.fetch();
  step.with_whole_values([&] {
    for (const auto& e : model.parameters())
      l.weights.insert(l.weights.end(), e.host.ptr<float>(), e.host.ptr<float>() + e.host.size());
  });
  return l;
}

TEST(mxfp4, recompute_changes_no_bit) {
  for (const auto family : {io::Family::gpt2, io::Family::llama}) {
    Training run{.family = family, .micros = 2};
    const auto want = train(run);
    EXPECT_EQ(train(run), want);
    run.change = [](StepOptions& o) { o.forward.recompute = true; };
    EXPECT_EQ(train(run), want);
    run.options.plain = true;
    EXPECT_NE(train(run), want);
    run.options.on = false;
    EXPECT_NE(train(run), want);
  }
}

TEST(mxfp4, ranks_that_share_the_batch_stay_equal_and_divide_what_they_keep) {
  std::vector<Learned> first;
  for (const int zero : {0, 1, 2, 3}) {
    std::vector<Learned> all(2);
    testing::run_ranks(2, [&](const comm::Group& world) {
      const Training r{.micros = 2, .change = [&](StepOptions& o) { o.zero = zero; }};
      all[static_cast<std::size_t>(world.rank())] = train(r, world);
    });
    EXPECT_EQ(all[0], all[1]) << "zero " << zero;
    first.push_back(all[0]);
    EXPECT_EQ(first.back(), first.front()) << "zero " << zero;
  }
}

TEST(mxfp4, first_and_last_blocks_and_the_head_are_exempt_and_programs_show_it) {
  const auto blocks_of = [](const Fp8Options& options) {
    auto model = LanguageModel::create(config_of(io::Family::llama), {}, true, {}, options);
    Pool pool(1);
    Stream s(pool);
    const StepPrograms programs(model, {.batch = 2, .length = 16, .forward = {.compute = DType::bf16}}, s);
    const auto pass = programs.first();
    const auto& program = pass->planned->program;
    std::map<std::string, std::set<std::string>> of;
    for (const auto& r : program.records) {
      const auto& scope = program.scopes[r.scope];
      if (r.op == "mx4_layer" || r.op == "linear")
        of[std::string(r.op.view())].insert(scope.substr(0, scope.find('.', 7)));
    }
    return of;
  };
  using Blocks = std::set<std::string>;
  EXPECT_EQ(blocks_of(kEmulated).at("mx4_layer"), (Blocks{"layers.1", "layers.2"}));
  EXPECT_EQ(blocks_of(kEmulated).at("linear"), (Blocks{"layers.0", "layers.3"}));
  EXPECT_EQ(blocks_of({.on = true, .mx4 = true, .first = 0, .last = 0}).at("mx4_layer").size(), 4u);
  EXPECT_THROW(blocks_of({.on = true, .mx4 = true, .first = 2, .last = 2}), UsageError);
}

TEST(mxfp4, sizes_that_do_not_fit_are_refused_in_words) {
  const auto refusal = [](std::int64_t ffn, std::int64_t length) -> std::string {
    auto c = config_of(io::Family::llama);
    c.ffn = ffn;
    auto model = LanguageModel::create(c, {}, true, {}, kEmulated);
    Pool pool(1);
    Stream s(pool);
    try {
      StepPrograms(model, {.batch = 1, .length = length, .forward = {.compute = DType::bf16}}, s).first();
    } catch (const UsageError& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal(128, 32), "accepted");
  EXPECT_NE(refusal(112, 32).find("model.layers.1.mlp.up_proj.weight is 112 x 64: products of MXFP4"),
            std::string::npos);
  EXPECT_NE(refusal(128, 16).find("16 tokens"), std::string::npos);
}

/// Windows of a text, by number, as tokens of bytes and the ones that follow.
struct Windows {
  std::string text = toy_text();
  std::vector<std::int32_t> tokens, targets;
  void draw(std::uint64_t number, int rows, int length, bool held_out) {
    tokens.clear(), targets.clear();
    const auto tenth = text.size() / 10;
    for (int r = 0; r < rows; ++r) {
      const auto at = (held_out ? 9 * tenth : 0) +
                      Rng{17, number}.below(static_cast<std::uint64_t>(r),
                                            (held_out ? tenth : 9 * tenth) - static_cast<std::size_t>(length) - 1);
      for (int i = 0; i < length; ++i) {
        tokens.push_back(text[at + static_cast<std::size_t>(i)]);
        targets.push_back(text[at + static_cast<std::size_t>(i) + 1]);
      }
    }
  }
};

/// The loss of a model on text that it has not seen, after some steps; all of its blocks multiply as the options say.
double loss_after(int steps, const Fp8Options& options) {
  constexpr int kRows = 8, kLength = 32;
  Pool pool(2);
  auto model = LanguageModel::create(config_of(io::Family::llama), 3, true, {}, options);
  TrainStep step(model, pool, {.batch = kRows, .length = kLength, .forward = {.compute = DType::bf16}});
  Windows w;
  for (int i = 0; i < steps; ++i) {
    w.draw(static_cast<std::uint64_t>(i), kRows, kLength, false);
    step.accumulate(w.tokens, w.targets, i, 0, true);
    const double warm = std::min(1.0, (i + 1) / 20.0), left = 1 - static_cast<double>(i) / steps;
    step.update(3e-3 * warm * left, kRows * kLength);
  }
  double sum = 0;
  constexpr int kBatches = 16;
  for (int i = 0; i < kBatches; ++i) {
    w.draw(1000000 + static_cast<std::uint64_t>(i), kRows, kLength, true);
    sum += step.evaluate(w.tokens, w.targets).loss / (kRows * kLength * kBatches);
  }
  return sum;
}

TEST(mxfp4, loses_little_and_less_than_rounding_to_nearest) {
  constexpr int kSteps = 200;
  const double bf16 = loss_after(kSteps, {}),
               quest = loss_after(kSteps, {.on = true, .mx4 = true, .first = 0, .last = 0}),
               plain = loss_after(kSteps, {.on = true, .mx4 = true, .plain = true, .first = 0, .last = 0});
  std::printf("loss %.5f in bf16, %.5f in emulated MXFP4, %.5f rounded to nearest\n", bf16, quest, plain);
  EXPECT_LE(quest - bf16, 0.04 * bf16);
  EXPECT_LT(quest - bf16, plain - bf16);
}

struct Mxfp4Runs : testing::MeshRuns {};

void emulated(RunConfig& c) {
  c.train.dtype = Compute::mxfp4_emu, c.train.fp8_first = c.train.fp8_last = 0;
  c.model.width = 64, c.model.ffn = 128;
}

TEST_F(Mxfp4Runs, go_on_as_if_they_had_not_been_stopped) {
  const auto change = [](RunConfig& c) { emulated(c), c.train.accumulate = 2, c.train.dropout = 0.1; };
  run_on({}, "whole", change);
  EXPECT_TRUE(run_on({}, "half", change, 3).stopped);
  EXPECT_EQ(run_on({}, "half", change).first_step, 3);
  expect_same_run(tmp.path() / "whole", tmp.path() / "half", "step_00000006");
}

TEST_F(Mxfp4Runs, of_two_ranks_follow_those_of_one) {
  run_on({}, "one", emulated), run_on({.dp = 2}, "two", emulated);
  const auto got = numbers("two", "loss"), want = numbers("one", "loss");
  ASSERT_EQ(got.size(), want.size());
  EXPECT_NEAR(got[0], want[0], 1e-5 * want[0]) << "nothing has been learned";
  // Sums over ranks differ in their last bits, for which weights between two codes are rounded to the other one.
  for (std::size_t i = 1; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 0x1p-8 * want[0]) << i;
}

std::string refusal(const std::function<void(RunConfig&)>& change) {
  RunConfig c;
  c.model.family = io::Family::llama, c.train.dtype = Compute::mxfp4_emu;
  change(c);
  return error_of([&] { check_config(c); });
}

TEST(mxfp4, what_is_not_tested_is_refused) {
  const auto refuses = [](const std::function<void(RunConfig&)>& change, const char* words) {
    EXPECT_NE(refusal(change).find(words), std::string::npos) << refusal(change);
  };
  EXPECT_EQ(refusal([](RunConfig&) {}), "no error");
  EXPECT_EQ(refusal([](RunConfig& c) { c.train.fp8_first = 2; }), "no error");
  refuses([](RunConfig& c) { c.train.device = "cuda"; }, "\"mxfp4-emu\" emulates MXFP4 on a CPU");
  refuses([](RunConfig& c) { c.parallel.tp = 2; }, "is not tested with parallel.tp = 2");
  refuses([](RunConfig& c) { c.parallel.pp = 2; }, "parallel.pp");
  refuses([](RunConfig& c) { c.parallel.cp = 2, c.model.context = 64; }, "\"mxfp4-emu\" is not tested with ranks that");
  refuses([](RunConfig& c) { c.parallel.invariant = true; }, "train.dtype = \"mxfp4-emu\": the result would depend");
  refuses([](RunConfig& c) { c.train.fp8_scaling = Fp8Scales::row; }, "is for fp8, and train.dtype is mxfp4-emu");
  refuses([](RunConfig& c) { c.model.family = io::Family::mixtral; }, "mixtures of experts");
  refuses([](RunConfig& c) { c.offload.activations = Tier::disk, c.offload.folder = "/tmp"; },
          "is not tested with offload.activations");
  refuses([](RunConfig& c) { c.init = "somewhere", c.adapter.method = models::AdapterMethod::lora; },
          "trains whole models");
}

}  // namespace
}  // namespace hpcdl::train

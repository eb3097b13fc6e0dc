// Training with products of 8-bit floats, emulated on a CPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/nn/fp8.h"
#include "hpcdl/parallel/tensor.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/check_config.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {
namespace {

using models::Fp8Options;
using models::LanguageModel;
using models::tiny_ids;

constexpr std::int64_t kTokens = 32;

io::ModelConfig config_of(io::Family family) {
  io::ModelConfig c;
  c.family = family;
  c.layers = 4, c.heads = 4, c.width = 64, c.ffn = 128, c.context = 16, c.vocab = 50;
  c.tied = family == io::Family::gpt2;
  models::resolve(c);
  return c;
}

struct Training {
  io::Family family = io::Family::llama;
  Fp8Options fp8 = {.on = true};
  int steps = 6;
  double lr = 1e-3;
  int micros = 1;
  int rank = 0;                    // whose batches one rank sees
  bool second_is_ignored = false;  // micro-batches after the first are the first one again, without targets
  std::function<void(StepOptions&)> change = {};
};

struct Learned {
  std::vector<double> losses;  // per token
  std::vector<float> weights, history;
  bool operator==(const Learned&) const = default;
};

std::vector<float> floats(std::span<const StateEntry> list) {
  std::vector<float> all;
  for (const auto& e : list) all.insert(all.end(), e.host.ptr<float>(), e.host.ptr<float>() + e.host.size());
  return all;
}

/// `data`: the ranks that share the batch; each has a part of its own.
Learned train(const Training& run, const comm::Group& data = {}, models::Sharing sharing = {}) {
  Pool pool(2);
  auto model = LanguageModel::create(config_of(run.family), 3, true, std::move(sharing), run.fp8);
  StepOptions o{
      .batch = 2, .length = 16, .accumulate = run.micros > 1, .forward = {.compute = DType::bf16}, .data = data};
  if (run.change) run.change(o);
  TrainStep step(model, pool, o);
  Learned l;
  for (int i = 0; i < run.steps; ++i) {
    for (int m = 0; m < run.micros; ++m) {
      const bool ignored = run.second_is_ignored && m > 0;
      const auto seed = static_cast<std::uint32_t>(5 + 10 * (run.second_is_ignored ? 0 : m) + run.rank + data.rank());
      step.accumulate(tiny_ids(seed), ignored ? std::vector<std::int32_t>(kTokens, -1) : tiny_ids(seed + 1), i, m,
                      m + 1 == run.micros);
    }
    const auto counted = run.second_is_ignored ? kTokens : kTokens * run.micros;
    const auto r = step.update(run.lr, counted);
    l.losses.push_back(r.loss / static_cast<double>(counted * data.size()));
  }
  step.fetch();
  step.with_whole_values([&] { l.weights = floats(model.parameters()); });
  l.history = floats(model.buffers());
  return l;
}

class EachScaling : public ::testing::TestWithParam<std::tuple<io::Family, Fp8Scales>> {
 protected:
  Training run() const {
    return {.family = std::get<0>(GetParam()), .fp8 = {.on = true, .scales = std::get<1>(GetParam())}};
  }
};
INSTANTIATE_TEST_SUITE_P(fp8, EachScaling,
                         ::testing::Combine(::testing::Values(io::Family::gpt2, io::Family::llama),
                                            ::testing::Values(Fp8Scales::delayed, Fp8Scales::current, Fp8Scales::row)));

/// An 8-bit operand is off by at most 2^-4 of itself. The loss of a batch that a model learns by heart falls to nearly
/// nothing, and what it may be off by falls with it.
TEST_P(EachScaling, trains_as_bf16_does_and_with_other_bits) {
  Training narrow = run(), wide = run();
  narrow.steps = wide.steps = 60;
  wide.fp8 = {};
  const auto got = train(narrow), want = train(wide);
  EXPECT_NE(got.losses.front(), want.losses.front()) << "the products were not those of 8-bit floats";
  EXPECT_LT(want.losses.back(), 0.5 * want.losses.front());
  for (std::size_t i = 0; i < want.losses.size(); ++i)
    EXPECT_NEAR(got.losses[i], want.losses[i], 0x1p-4 * want.losses.front()) << "step " << i;
  EXPECT_NEAR(got.losses.front(), want.losses.front(), 0x1p-8 * want.losses.front()) << "before anything was learned";
}

TEST_P(EachScaling, recompute_changes_no_bit) {
  Training again = run();
  again.change = [](StepOptions& o) { o.forward.recompute = true; };
  EXPECT_EQ(train(again), train(run()));
}

TEST_P(EachScaling, micro_batches_add_up) {
  Training once = run(), twice = run();
  twice.micros = 2, twice.second_is_ignored = true;
  EXPECT_EQ(train(twice), train(once));
}

TEST_P(EachScaling, ranks_that_share_the_batch_stay_equal_and_divide_what_they_keep) {
  for (const int ranks : {2, 3}) {
    std::vector<std::vector<Learned>> of(4);
    for (const int zero : {0, 1, 2, 3}) {
      auto& all = of[static_cast<std::size_t>(zero)];
      all.resize(static_cast<std::size_t>(ranks));
      testing::run_ranks(ranks, [&](const comm::Group& world) {
        Training r = run();
        r.micros = 2;
        r.change = [&](StepOptions& o) { o.zero = zero; };
        all[static_cast<std::size_t>(world.rank())] = train(r, world);
      });
      for (const auto& l : all) {
        EXPECT_EQ(l, all.front()) << "zero " << zero;
        EXPECT_EQ(l, of[0].front()) << "zero " << zero;
      }
    }
  }
}

TEST_P(EachScaling, ranks_that_share_the_layers_learn_what_one_learns) {
  const auto want = train(run());
  for (const auto scheme : {parallel::TensorParallel::conjugate, parallel::TensorParallel::sequence}) {
    std::vector<Learned> all(2);
    testing::run_ranks(2, [&](const comm::Group& world) {
      all[static_cast<std::size_t>(world.rank())] =
          train(run(), {}, std::make_shared<parallel::TensorParallel>(world, scheme));
    });
    for (std::size_t i = 0; i < want.losses.size(); ++i) {
      EXPECT_EQ(all[0].losses[i], all[1].losses[i]);
      EXPECT_NEAR(all[0].losses[i], want.losses[i], 0x1p-6 * want.losses.front()) << i;
    }
    EXPECT_EQ(all[0].history, all[1].history);
  }
}

/// In the first step every rank measures, so the history has, to the bit, what ranks alone have measured.
TEST(fp8, the_history_holds_the_maximum_of_all_ranks_and_micro_batches) {
  const Training run{.steps = 1, .micros = 2};
  std::vector<Learned> alone, together(2);
  for (const int rank : {0, 1}) {
    Training r = run;
    r.rank = rank;
    alone.push_back(train(r));
  }
  testing::run_ranks(
      2, [&](const comm::Group& world) { together[static_cast<std::size_t>(world.rank())] = train(run, world); });
  EXPECT_EQ(together[0].history, together[1].history);
  const auto tensors = together[0].history.size() / (1 + kAmaxSteps);
  for (std::size_t t = 0; t < tensors; ++t) {
    EXPECT_EQ(together[0].history[t], 0) << "of a step that has not begun";
    EXPECT_GT(together[0].history[tensors + t], 0);
    EXPECT_EQ(together[0].history[tensors + t], std::max(alone[0].history[tensors + t], alone[1].history[tensors + t]))
        << t;
  }
}

TEST(fp8, first_and_last_blocks_and_the_head_are_exempt_and_programs_show_it) {
  const auto scopes = [](const Fp8Options& fp8) {
    auto model = LanguageModel::create(config_of(io::Family::llama), {}, true, {}, fp8);
    Pool pool(1);
    Stream s(pool);
    const StepPrograms programs(model, {.batch = 2, .length = 16, .forward = {.compute = DType::bf16}}, s);
    const auto pass = programs.first();
    const auto& program = pass->planned->program;
    std::map<std::string, std::set<std::string>> of;  // op -> blocks
    for (const auto& r : program.records) {
      const auto& scope = program.scopes[r.scope];
      if (r.op == "fp8_layer" || r.op == "linear")
        of[std::string(r.op.view())].insert(scope.substr(0, scope.find('.', 7)));
      EXPECT_FALSE(scope.starts_with("head") && r.op.starts_with("fp8")) << scope;
    }
    return of;
  };
  using Blocks = std::set<std::string>;
  const auto normal = scopes({.on = true});
  EXPECT_EQ(normal.at("fp8_layer"), (Blocks{"layers.1", "layers.2"}));
  EXPECT_EQ(normal.at("linear"), (Blocks{"layers.0", "layers.3"}));
  const auto all = scopes({.on = true, .first = 0, .last = 0});
  EXPECT_EQ(all.at("fp8_layer").size(), 4u);
  EXPECT_FALSE(all.contains("linear"));
  EXPECT_FALSE(scopes({}).contains("fp8_layer"));
  EXPECT_THROW(scopes({.on = true, .first = 2, .last = 2}), UsageError);
}

/// q, k and v read one cast of x, as gate and up do: per block 4 casts of activations, 7 of weights, 7 of gradients.
TEST(fp8, layers_that_read_one_tensor_share_its_cast) {
  auto model = LanguageModel::create(config_of(io::Family::llama), {}, true, {}, {.on = true, .first = 1, .last = 2});
  Pool pool(1);
  Stream s(pool);
  const StepPrograms programs(model, {.batch = 2, .length = 16, .forward = {.compute = DType::bf16}}, s);
  const auto pass = programs.first();
  int forward = 0, backward = 0;
  for (const auto& r : pass->planned->program.records)
    if (r.op == "fp8_cast") ++(r.phase == Phase::forward ? forward : backward);
  EXPECT_EQ(forward, 4 + 7);
  EXPECT_EQ(backward, 7);
}

TEST(fp8, sizes_that_do_not_fit_are_refused_in_words) {
  const auto refusal = [](std::int64_t ffn, std::int64_t length) -> std::string {
    auto c = config_of(io::Family::llama);
    c.ffn = ffn;
    auto model = LanguageModel::create(c, {}, true, {}, {.on = true});
    Pool pool(1);
    Stream s(pool);
    try {
      StepPrograms(model, {.batch = 1, .length = length, .forward = {.compute = DType::bf16}}, s).first();
    } catch (const UsageError& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal(128, 16), "accepted");
  EXPECT_NE(refusal(120, 16).find("model.layers.1.mlp.up_proj.weight is 120 x 64"), std::string::npos)
      << refusal(120, 16);
  EXPECT_NE(refusal(128, 15).find("15 tokens"), std::string::npos);
}

TEST(fp8, a_cpu_refuses_and_emulates_only_by_name) {
  const auto refusal = [](const std::function<void(RunConfig&)>& change) -> std::string {
    RunConfig c;
    c.model.family = io::Family::llama;
    change(c);
    try {
      check_config(c);
    } catch (const UsageError& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_NE(refusal([](RunConfig& c) { c.train.dtype = Compute::fp8; }).find("compute capability 8.9"),
            std::string::npos);
  EXPECT_EQ(refusal([](RunConfig& c) { c.train.dtype = Compute::fp8_emu; }), "accepted");
  EXPECT_EQ(refusal([](RunConfig& c) { c.train.dtype = Compute::fp8, c.train.device = "cuda"; }), "accepted");
  EXPECT_NE(refusal([](RunConfig& c) { c.train.dtype = Compute::fp8_emu, c.train.device = "cuda"; }).find("on a CPU"),
            std::string::npos);
  EXPECT_NE(refusal([](RunConfig& c) { c.train.fp8_first = 2; }).find("train.fp8_first = 2 is for fp8"),
            std::string::npos);
  EXPECT_NE(refusal([](RunConfig& c) {
              c.train.dtype = Compute::fp8_emu;
              c.init = "somewhere", c.adapter.method = models::AdapterMethod::lora;
            }).find("trains whole models"),
            std::string::npos);
}

}  // namespace
}  // namespace hpcdl::train

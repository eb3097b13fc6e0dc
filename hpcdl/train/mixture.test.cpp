// Training of mixtures of experts on several ranks, and runs.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/testing/tune_toy.h"
#include "hpcdl/train/runs_for_tests.h"
#include "hpcdl/train/train_for_tests.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {
namespace {

using Change = std::function<void(StepOptions&)>;

struct Learned {
  std::vector<double> numbers;  // losses and norms
  std::vector<float> weights;
  bool operator==(const Learned&) const = default;
};

/// Steps of `ranks` ranks that divide the rows of one batch of 4.
Learned train_mixture(int ranks, const Change& change = {}, double balance = 0.01) {
  Learned first;
  testing::run_ranks(ranks, [&](const comm::Group& world) {
    auto c = models::tiny(io::Family::qwen3_moe);
    c.vocab = 700, c.balance = balance;
    auto model = models::LanguageModel::create(c, 3, true);
    Pool pool(1);
    StepOptions o{.batch = 4 / ranks, .length = 16, .data = world, .share_batch = true};
    if (change) change(o);
    TrainStep step(model, pool, o);
    Learned l;
    const auto rows = [&](std::uint32_t seed) {
      auto all = models::tiny_ids(seed);
      const auto more = models::tiny_ids(seed + 1);
      all.insert(all.end(), more.begin(), more.end());
      const auto share = std::ssize(all) / ranks * world.rank();
      return std::vector<std::int32_t>(all.begin() + share, all.begin() + share + std::ssize(all) / ranks);
    };
    for (std::uint32_t i = 0; i < 8; ++i) {
      const std::int64_t micros = o.accumulate ? 2 : 1;
      for (std::int64_t m = 0; m < micros; ++m) {
        const auto seed = 100 * i + 10 * static_cast<std::uint32_t>(m);
        step.accumulate(rows(seed), rows(seed + 5000), i, m, m + 1 == micros);
      }
      const auto r = step.update(1e-2, 64 / ranks * micros);
      l.numbers.insert(l.numbers.end(), {r.loss, r.grad_norm});
    }
    step.fetch();
    step.with_whole_values([&] {
      for (const auto& e : model.parameters())
        l.weights.insert(l.weights.end(), e.host.ptr<float>(), e.host.ptr<float>() + e.host.size());
    });
    if (world.rank() == 0) first = std::move(l);
  });
  return first;
}

double farthest(const Learned& a, const Learned& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.numbers.size(); ++i)
    worst = std::max(worst, std::fabs(a.numbers[i] - b.numbers[i]) / std::fabs(b.numbers[i]));
  for (std::size_t i = 0; i < a.weights.size(); ++i)
    worst = std::max(worst, std::fabs(static_cast<double>(a.weights[i]) - static_cast<double>(b.weights[i])));
  return worst;
}

/// The balance counts the choices of all ranks, so that a batch has the same loss however ranks divide it.
TEST(mixture, ranks_learn_what_one_rank_learns) {
  const Change sgd = [](StepOptions& o) { o.optimizer = Sgd::Args{.momentum = 0.9f}; };
  const auto one = train_mixture(1, sgd);
  ASSERT_GT(one.weights.size(), 0U);
  EXPECT_LT(one.numbers[one.numbers.size() - 2], one.numbers[0]) << "the loss should fall";
  for (const int ranks : {2, 4}) EXPECT_LT(farthest(train_mixture(ranks, sgd), one), 1e-5) << ranks << " ranks";
}

TEST(mixture, stages_of_zero_and_recompute_change_no_bit) {
  const std::pair<const char*, Change> kinds[] = {
      {"f32", {}},
      {"micro-batches", [](StepOptions& o) { o.accumulate = true; }},
      {"bf16 with copies", [](StepOptions& o) { o.forward.compute = DType::bf16, o.copies = true; }},
      {"bf16 without", [](StepOptions& o) { o.forward.compute = DType::bf16; }},
      {"clipping", [](StepOptions& o) { o.clip = 0.05f; }},
      {"fp16", [](StepOptions& o) {
         o.forward.compute = DType::f16, o.copies = true;
         o.scaler = GradScaler::Options{.init_scale = 0x1p8f};
       }}};
  for (const auto& [what, change] : kinds) {
    const auto want = train_mixture(2, change);
    for (const int zero : {1, 2, 3}) {
      const bool recompute = zero != 2;
      const auto got = train_mixture(2, [&](StepOptions& o) {
        if (change) change(o);
        o.zero = zero, o.forward.recompute = recompute;
      });
      EXPECT_TRUE(got == want) << what << ", zero " << zero << ", recompute " << recompute;
    }
  }
}

/// A toy run of a mixture in tmp/NAME.
RunSummary run_toy(const io::TempFolder& tmp, const std::string& name, const std::function<void(RunConfig&)>& change) {
  RunConfig c;
  toy_config(c, tmp, name);
  c.model.family = io::Family::mixtral, c.model.experts = 4, c.model.chosen_experts = 2, c.model.expert_ffn = 48;
  if (change) change(c);
  return run(c, {});
}

TEST(mixture, a_stopped_run_goes_on_as_if_it_had_not_been) {
  const io::TempFolder tmp;
  run_toy(tmp, "whole", {});
  run_toy(tmp, "half", [](RunConfig& c) { c.checkpoint.every = 3; });
  std::filesystem::remove_all(tmp / "half" / "checkpoints" / "step_00000006");
  EXPECT_EQ(run_toy(tmp, "half", {}).first_step, 3);
  expect_same_file(tmp / "whole" / "model" / "model.safetensors", tmp / "half" / "model" / "model.safetensors");
}

TEST(mixture, adapters_of_attention_learn_and_those_of_experts_are_refused) {
  const io::TempFolder tmp;
  const auto base = run_toy(tmp, "base", {});
  const auto adapt = [&](const std::string& name, const std::vector<std::string>& targets,
                         const std::vector<std::string>& keep = {}) {
    return testing::tune_toy(tmp, name, 1, [&](RunConfig& c) {
      c.adapter.method = models::AdapterMethod::lora, c.adapter.r = 4, c.adapter.targets = targets;
      c.adapter.keep = keep;
    });
  };
  const auto attention = adapt("attention", {"q_proj", "k_proj", "v_proj", "o_proj"});
  EXPECT_LT(attention.loss, base.loss);
  EXPECT_LT(adapt("experts", {"q_proj", "v_proj"}, {"w[123]", "gate"}).loss, attention.loss) << "whole experts";
  for (const std::string target : {"all-linear", "w1", "gate"})
    EXPECT_NE(error_of([&] { adapt("refused_" + target, {target}); }).find("cannot have an adapter"), std::string::npos)
        << target;
}

}  // namespace
}  // namespace hpcdl::train

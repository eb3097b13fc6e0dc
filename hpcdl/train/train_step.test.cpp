#include "hpcdl/train/train_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "hpcdl/models/family.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/ops/add/add.h"
#include "hpcdl/ops/softmax/softmax.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/non_finite.h"

namespace hpcdl::train {
namespace {

io::ModelConfig toy_model() {
  io::ModelConfig c;
  c.family = io::Family::llama;
  c.layers = 2, c.heads = 2, c.width = 32, c.context = 16, c.vocab = 50;
  models::resolve(c);
  return c;
}

std::vector<std::int32_t> ids(std::size_t n, std::uint32_t seed) {
  std::vector<std::int32_t> list(n);
  for (auto& id : list) id = static_cast<std::int32_t>((seed = seed * 1664525u + 1013904223u) >> 16) % 50;
  return list;
}

/// Largest difference between two models' gradients, relative to the largest gradient.
double gradient_distance(models::LanguageModel& a, models::LanguageModel& b, float scale_b) {
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < a.parameters().size(); ++i) {
    const auto& x = a.parameters()[i].gradient->memory;
    const auto& y = b.parameters()[i].gradient->memory;
    for (std::int64_t k = 0; k < x.size(); ++k) {
      worst = std::max(worst, std::fabs(double{x.ptr<float>()[k]} - double{y.ptr<float>()[k] * scale_b}));
      largest = std::max(largest, std::fabs(double{x.ptr<float>()[k]}));
    }
  }
  return worst / largest;
}

/// Gradients that ranks sum are in memory of the step, and are released with it. Two ranks with the same batch learn
/// the same as one, to the bit: 2 g / 2 n.
TEST(train_step, a_model_can_be_trained_after_a_step_of_many_ranks) {
  const auto tokens = ids(32, 1), targets = ids(32, 2);
  const auto weights = [](models::LanguageModel& model) {
    std::vector<float> all;
    for (const auto& p : model.parameters())
      all.insert(all.end(), p.memory.ptr<float>(), p.memory.ptr<float>() + p.memory.size());
    return all;
  };
  const auto one_step = [&](models::LanguageModel& model, const comm::Group& data) {
    Pool pool(1);
    TrainStep step(model, pool, {.batch = 2, .length = 16, .data = data});
    step.accumulate(tokens, targets, 0, 0);
    step.update(1e-2, 32);
  };
  auto alone = models::LanguageModel::create(toy_model(), 3, true);
  one_step(alone, {}), one_step(alone, {}), one_step(alone, {});
  testing::run_ranks(2, [&](const comm::Group& world) {
    auto model = models::LanguageModel::create(toy_model(), 3, true);
    one_step(model, world);
    for (const auto& p : model.parameters())
      EXPECT_FALSE(p.gradient) << p.name << " has a gradient in memory that has been released";
    one_step(model, world);
    one_step(model, {});
    for (const auto& p : model.parameters()) EXPECT_TRUE(p.gradient) << p.name;
    EXPECT_EQ(weights(model), weights(alone));
  });
}

/// Micro-batches with different numbers of valid targets have the weight that they have in one combined batch.
TEST(train_step, accumulation_is_normalised_by_valid_tokens) {
  Pool pool(2);
  auto whole = models::LanguageModel::create(toy_model(), 3, true),
       parts = models::LanguageModel::create(toy_model(), 3, true);
  TrainStep one(whole, pool, {.batch = 4, .length = 16}),
      two(parts, pool, {.batch = 2, .length = 16, .accumulate = true});
  const auto tokens = ids(64, 1);
  auto targets = ids(64, 2);
  for (int i = 3; i < 25; ++i) targets[static_cast<std::size_t>(i)] = -1;  // only of the first half
  const std::span<const std::int32_t> t(tokens), y(targets);
  one.accumulate(t, y, 0, 0);
  two.accumulate(t.first(32), y.first(32), 0, 0), two.accumulate(t.last(32), y.last(32), 0, 1);
  const double all = one.loss(), sum = two.loss();
  constexpr double kEps = std::numeric_limits<float>::epsilon();
  EXPECT_NEAR(all, sum, 64 * kEps * all);
  EXPECT_LT(gradient_distance(whole, parts, 1), 64 * kEps);
  const double norm = one.update(1e-3, 42).grad_norm;
  EXPECT_NEAR(norm, two.update(1e-3, 42).grad_norm, 64 * kEps * norm);
}

TEST(train_step, the_same_seed_gives_the_same_bits) {
  Pool pool(2);
  std::vector<std::vector<float>> results;
  for (int round = 0; round < 2; ++round) {
    auto model = models::LanguageModel::create(toy_model(), 3, true);
    TrainStep step(model, pool, {.batch = 2, .length = 16, .forward = {.dropout = 0.2f}});
    for (int i = 0; i < 3; ++i) {
      step.accumulate(ids(32, 5), ids(32, 6), i, 0);
      step.update(1e-2, 32);
    }
    const auto& w = model.parameters()[0].memory;
    results.emplace_back(w.ptr<float>(), w.ptr<float>() + w.size());
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(train_step, rounded_copies_of_the_weights_change_no_bit) {
  Pool pool(2);
  for (const auto family : {io::Family::gpt2, io::Family::llama}) {
    auto config = toy_model();
    config.family = family;
    config.activation = io::Activation::automatic;
    config.tied = family == io::Family::gpt2;
    std::vector<std::vector<float>> results;
    std::vector<double> losses;
    for (const bool copies : {false, true}) {
      auto model = models::LanguageModel::create(config, 3, true);
      TrainStep step(
          model, pool,
          {.batch = 2, .length = 16, .forward = {.compute = DType::bf16, .recompute = true}, .copies = copies});
      EXPECT_EQ(copies, static_cast<bool>(model.parameters()[family == io::Family::gpt2 ? 0 : 1].copy));
      for (int i = 0; i < 3; ++i) {
        step.accumulate(ids(32, 5), ids(32, 6), i, 0);
        losses.push_back(step.update(1e-2, 32).loss);
      }
      auto& all = results.emplace_back();
      for (const auto& p : model.parameters())
        all.insert(all.end(), p.memory.ptr<float>(), p.memory.ptr<float>() + p.memory.size());
      for (const auto& p : model.parameters())
        for (std::int64_t k = 0; p.copy && k < p.copy->memory.size(); ++k)
          ASSERT_EQ(p.copy->memory.ptr<bf16>()[k].bits, bf16(p.memory.ptr<float>()[k]).bits) << p.name;
    }
    EXPECT_EQ(results[0], results[1]);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(losses[i], losses[i + 3]);
    EXPECT_LT(losses[2], losses[0]);
  }
}

TEST(train_step, a_scaled_loss_gives_the_same_bits_and_an_overflow_changes_nothing) {
  Pool pool(2);
  auto plain = models::LanguageModel::create(toy_model(), 3, true),
       scaled = models::LanguageModel::create(toy_model(), 3, true);
  TrainStep one(plain, pool, {.batch = 2, .length = 16});
  TrainStep two(scaled, pool,
                {.batch = 2, .length = 16, .scaler = GradScaler::Options{.init_scale = 512, .growth_interval = 2}});
  const auto same = [&] {
    for (std::size_t i = 0; i < plain.parameters().size(); ++i) {
      const auto& a = plain.parameters()[i].memory;
      ASSERT_EQ(std::memcmp(a.data(), scaled.parameters()[i].memory.data(), static_cast<std::size_t>(a.bytes())), 0)
          << plain.parameters()[i].name;
    }
    for (std::size_t i = 0; i < one.optimizer_state().size(); ++i) {
      const auto a = one.optimizer_state()[i].tensor, b = two.optimizer_state()[i].tensor;
      ASSERT_EQ(std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.bytes())), 0);
    }
  };
  for (int i = 0; i < 3; ++i) {
    for (auto* step : {&one, &two}) step->accumulate(ids(32, 5), ids(32, 6), i, 0);
    EXPECT_EQ(one.update(1e-2, 32).grad_norm, two.update(1e-2, 32).grad_norm);
  }
  same();
  EXPECT_EQ(two.scale_state().scale, 1024) << "must grow after two good steps";
  two.accumulate(ids(32, 5), ids(32, 6), 3, 0);
  scaled.parameters()[1].gradient->memory.ptr<float>()[0] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(two.update(1e-2, 32).finite());
  EXPECT_EQ(two.scale_state().scale, 512);
  EXPECT_EQ(two.scale_state().counts.skipped, 1);
  same();
  // The skipped step does not count: the optimizer's next step is the fourth on both sides.
  one.accumulate(ids(32, 7), ids(32, 8), 3, 0), two.accumulate(ids(32, 7), ids(32, 8), 4, 0);
  one.update(1e-2, 32), two.update(1e-2, 32);
  same();
}

TEST(train_step, a_norm_that_is_not_finite_changes_nothing) {
  Pool pool(1);
  auto model = models::LanguageModel::create(toy_model(), 3, true);
  TrainStep step(model, pool, {.batch = 2, .length = 16});
  step.accumulate(ids(32, 5), ids(32, 6), 0, 0);
  const auto& p = model.parameters()[1];
  const std::vector<float> before(p.memory.ptr<float>(), p.memory.ptr<float>() + p.memory.size());
  model.parameters()[1].gradient->memory.ptr<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(step.update(1e-2, 32).finite());
  EXPECT_EQ(before, std::vector<float>(p.memory.ptr<float>(), p.memory.ptr<float>() + p.memory.size()));
}

TEST(train_step, a_bad_weight_is_named) {
  Pool pool(1);
  auto model = models::LanguageModel::create(toy_model(), 3, true);
  TrainStep step(model, pool, {.batch = 2, .length = 16});
  auto& p = model.parameters()[4];
  p.memory.ptr<float>()[1] = std::numeric_limits<float>::infinity();
  step.accumulate(ids(32, 5), ids(32, 6), 0, 0);
  EXPECT_FALSE(std::isfinite(step.loss()));
  EXPECT_EQ(step.explain_non_finite().what, "the weight \"" + p.name + "\"");
}

TEST(train_step, evaluation_is_the_loss_without_dropout_and_leaves_gradients_alone) {
  Pool pool(1);
  auto model = models::LanguageModel::create(toy_model(), 3, true);
  TrainStep step(model, pool, {.batch = 2, .length = 16});
  step.accumulate(ids(32, 5), ids(32, 6), 0, 0);
  const double loss = step.loss();
  const float before = model.parameters()[0].gradient->memory.ptr<float>()[7];
  EXPECT_DOUBLE_EQ(step.evaluate(ids(32, 5), ids(32, 6)).loss, loss);
  EXPECT_EQ(model.parameters()[0].gradient->memory.ptr<float>()[7], before);
}

TEST(non_finite, the_first_record_that_makes_one_is_named_and_the_samples_it_came_with) {
  Graph g({.inference = true});
  const Var x = g.input("x", {{4, 8}, DType::f32});
  const Var y = g.keep(softmax(add(x, x)));
  const Instance exe(g.finish());
  Pool pool(1);
  StepParams params;
  Stream s(pool, &params);
  float* in = exe.tensor(x).ptr<float>();
  const auto hunt = [&](std::initializer_list<std::pair<int, float>> bad) {
    std::fill(in, in + 32, 1.0f);
    for (const auto& [at, value] : bad) in[at] = value;
    return first_non_finite(exe, s, 4);
  };
  EXPECT_FALSE(hunt({}));
  const auto made = hunt({{8, 3e38f}, {31, -3e38f}});
  ASSERT_TRUE(made);
  EXPECT_NE(made->what.find("record 0 (add, forward)"), std::string::npos) << made->what;
  EXPECT_FALSE(made->input);
  EXPECT_EQ(made->rows, (std::vector<std::int64_t>{1, 3}));
  const auto given = hunt({{17, std::numeric_limits<float>::quiet_NaN()}});
  ASSERT_TRUE(given);
  EXPECT_NE(given->what.find("the input \"x\""), std::string::npos) << given->what;
  EXPECT_TRUE(given->input);
  EXPECT_EQ(given->rows, (std::vector<std::int64_t>{2}));
  EXPECT_TRUE(y);
}

}  // namespace
}  // namespace hpcdl::train

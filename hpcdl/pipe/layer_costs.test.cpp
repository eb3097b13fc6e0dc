#include "hpcdl/pipe/layer_costs.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hpcdl/models/family.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/nn/vocabulary_share.h"
#include "hpcdl/pipe/layers.h"
#include "hpcdl/pipe/micro_batch.h"
#include "hpcdl/train/step_programs.h"

namespace hpcdl::pipe {
namespace {

std::vector<PartCost> costs_of(io::Family family, bool recompute = false) {
  io::ModelConfig config;
  config.family = family;
  config.layers = 3, config.heads = 2, config.width = 64, config.context = 16, config.vocab = 300;
  models::resolve(config);
  auto model = models::LanguageModel::create(config, {}, true);
  const auto pass =
      record_micro_batch(model, {.batch = 2, .length = 16, .forward = {.recompute = recompute}}, Write::accumulate);
  Pool pool(1);
  Stream stream(pool);
  const train::StepPrograms step(model, {.batch = 2, .length = 16}, stream);
  return layer_costs(pass.recording.program, step.update()->planned->program,
                     [](const Record& r) { return r.cost.operations; });
}

TEST(layer_costs, names_layers_by_scope) {
  EXPECT_EQ(layer_of("layers.3.mlp.up_proj"), "layers.3");
  EXPECT_EQ(layer_of("layers.12"), "layers.12");
  EXPECT_EQ(layer_of("head.norm"), "head");
  EXPECT_EQ(layer_of("embedding"), "embedding");
  EXPECT_EQ(layer_of(""), "");
}

TEST(layer_costs, cuts_a_text_model_into_embedding_blocks_and_head) {
  const auto layers = costs_of(io::Family::llama);
  ASSERT_EQ(layers.size(), 5u);
  EXPECT_EQ(layers.front().name, "embedding");
  EXPECT_EQ(layers.back().name, "head");
  constexpr std::int64_t kRows = 2 * 16, kWidth = 64, kHidden = 192, kBoundary = kRows * kWidth * 4;
  for (std::size_t i = 1; i < 4; ++i) {
    const auto& block = layers[i];
    EXPECT_EQ(block.name, "layers." + std::to_string(i - 1));
    // Seven matrices, whose gradients are records of their own; products are all but a few percent.
    EXPECT_EQ(block.weight_records, 7);
    const double matrices = 4 * kWidth * kWidth + 3 * kWidth * kHidden;
    EXPECT_EQ(block.weight_gradient, 2 * kRows * matrices);
    EXPECT_NEAR(block.forward, 2 * kRows * matrices, 0.06 * block.forward);
    EXPECT_NEAR(block.input_gradient, 2 * kRows * matrices, 0.15 * block.input_gradient);
    EXPECT_EQ(block.activation_bytes, kBoundary);
    EXPECT_EQ(block.gradient_bytes, kBoundary);
    EXPECT_EQ(block.value_bytes, 4 * static_cast<std::int64_t>(matrices + 2 * kWidth));
    EXPECT_EQ(block.state_bytes, 4 * block.value_bytes) << "value, gradient, two moments";
    // Norms: input and inverse norm twice, their outputs; q, k, v and the output of attention with its sums; up and gate
    // and their product.
    const std::int64_t rows = 4 * kWidth + 2 + 4 * kWidth + 3 * kHidden;
    EXPECT_NEAR(static_cast<double>(block.frame_bytes), static_cast<double>(4 * kRows * rows), 0.02 * 4 * kRows * rows);
  }
  EXPECT_EQ(layers.front().activation_bytes, kBoundary);
  EXPECT_EQ(layers.front().gradient_bytes, 0);
  EXPECT_EQ(layers.back().activation_bytes, 0);
  EXPECT_EQ(layers.back().gradient_bytes, kBoundary);
  EXPECT_GT(layers.back().forward, 2.0 * kRows * kWidth * 300) << "the head is a product";
}

TEST(layer_costs, recomputed_activations_are_in_no_frame) {
  const auto kept = costs_of(io::Family::gpt2), again = costs_of(io::Family::gpt2, true);
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(again[i].frame_bytes, 2 * 16 * 64 * 4) << "its input alone";
    EXPECT_GT(kept[i].frame_bytes, 5 * again[i].frame_bytes);
    EXPECT_GT(again[i].input_gradient, kept[i].input_gradient) << "recomputing delays the stage before";
  }
}

/// A share of the head and of the embedding is in no layer, and costs its part of the product.
TEST(layer_costs, a_divided_vocabulary_is_in_no_layer) {
  constexpr std::int64_t kRows = 2 * 16, kWidth = 64, kVocab = 301;
  io::ModelConfig config{.layers = 3, .heads = 2, .width = kWidth, .context = 16, .vocab = kVocab};
  config.family = io::Family::llama, config.tied = false;
  models::resolve(config);
  for (const int barriers : {1, 2})
    for (const int rank : {0, 1}) {
      const auto share = std::make_shared<nn::VocabularyShare>();
      share->axis = Axis("pp", 2, nullptr), share->rank = rank, share->barriers = barriers;
      auto model = models::LanguageModel::create(config, {}, true, {}, {}, {}, models::Values::later, share);
      const auto pass = record_micro_batch(model, {.batch = 2, .length = 16}, Write::accumulate);
      const auto& program = pass.recording.program;
      Pool pool(1);
      Stream stream(pool);
      const train::StepPrograms step(model, {.batch = 2, .length = 16}, stream);
      const auto operations = [](const Record& r) { return r.cost.operations; };
      const auto& update = step.update()->planned->program;
      const auto layers = layer_costs(program, update, operations);
      ASSERT_EQ(layers.size(), 5u);
      EXPECT_LT(layers.back().seconds(), 100.0 * kRows * kWidth) << "a norm";
      EXPECT_EQ(layers.back().state_bytes, 4 * 4 * kWidth);
      EXPECT_EQ(layers.front().state_bytes, 0);
      const auto cost = vocabulary_cost(program, update, operations).value();
      const double product = 2.0 * kRows * kWidth * (rank == 0 ? 150 : 151);
      EXPECT_NEAR(cost.logits, (barriers == 1 ? 2 : 1) * product, 0.1 * product);
      EXPECT_NEAR(cost.loss, (barriers == 1 ? 1 : 2) * product, 0.1 * product);
      EXPECT_EQ(cost.state_bytes, 2 * 4 * 4 * kWidth * (rank == 0 ? 150 : 151)) << "two tables";
      EXPECT_EQ(cost.hidden_bytes, 4 * kRows * kWidth);
      EXPECT_EQ(cost.statistics_bytes, 4 * 4 * kRows);
      EXPECT_GE(cost.head_bytes, 4 * kRows * 150) << "logits are kept";
      EXPECT_EQ(cost.lookup_records, 1);
      EXPECT_EQ(cost.gradient_records, 1);
      EXPECT_EQ(cost.logits_records, barriers == 1 ? 2 : 1) << "with the gradient of the loss";
      EXPECT_EQ(cost.rows_bytes, 4 * kRows * (kWidth + 1)) << "and the tokens";
    }
  EXPECT_FALSE(vocabulary_cost(record_micro_batch(models::LanguageModel::create(config, {}, true),
                                                  {.batch = 2, .length = 16}, Write::accumulate)
                                   .recording.program,
                               {}, [](const Record&) { return 1.0; })
                   .has_value());
}

}  // namespace
}  // namespace hpcdl::pipe

#include "hpcdl/infer/kv_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "hpcdl/infer/evaluate.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/model.h"
#include "hpcdl/train.h"

namespace hpcdl::infer {
namespace {

TEST(KvPool, codes_take_half_the_memory_of_16_bits) {
  for (const std::int64_t width : {80, 128, 256}) {
    const auto codes = pool_of(7, 8, width, DType::i8).bytes(), bits16 = pool_of(7, 8, width, DType::bf16).bytes();
    EXPECT_LE(static_cast<double>(codes), 0.53 * static_cast<double>(bits16)) << width;
    EXPECT_EQ(codes, pool_of(7, 8, width, DType::f8_e4m3).bytes());
  }
}

TEST(KvPool, types_have_names) {
  EXPECT_EQ(kv_type("serve", "auto"), DType::none);
  EXPECT_EQ(kv_type("serve", "i8"), DType::i8);
  EXPECT_EQ(kv_type("serve", "f8"), DType::f8_e4m3);
  EXPECT_THROW(kv_type("serve", "int8"), UsageError);
}

/// The bytes of a text of this project.
std::vector<std::int32_t> bytes_of(const char* file) {
  const auto text = io::read_file(std::string(HPCDL_SOURCE_DIR) + "/" + file);
  std::vector<std::int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

/// A model that has learnt some English, on text that it has not seen: perplexity hardly depends on the type of its pages.
TEST(KvPool, codes_keep_the_perplexity_of_a_trained_model) {
  constexpr std::int64_t kBatch = 8, kLength = 64, kSteps = 150;
  Pool pool(2);
  Model model = Model::create(
      {.family = "llama", .layers = 2, .heads = 4, .width = 64, .context = 256, .vocab = 256, .kv_heads = 2}, 3);
  Trainer trainer(model, pool, {.batch = kBatch, .length = kLength});
  const auto text = bytes_of("docs/tour.md");
  for (std::int64_t step = 0; step < kSteps; ++step) {
    std::vector<std::int32_t> tokens, targets;
    for (std::int64_t i = 0; i < kBatch; ++i) {
      const auto at = text.begin() + (step * kBatch + i) * 997 % (std::ssize(text) - kLength - 1);
      tokens.insert(tokens.end(), at, at + kLength), targets.insert(targets.end(), at + 1, at + kLength + 1);
    }
    trainer.step(tokens, targets, 3e-3);
  }
  const auto unseen = bytes_of("CONTRIBUTING.md");
  const auto perplexity = [&](DType kv) {
    return evaluate_in_pages(model.internal(), pool, std::span(unseen).first(3000), {.kv = kv}).perplexity;
  };
  const double exact = perplexity(DType::f32);
  EXPECT_LT(exact, 40) << "it has learnt something";
  EXPECT_NEAR(perplexity(DType::i8) / exact, 1, 0.001);
  EXPECT_NEAR(perplexity(DType::f8_e4m3) / exact, 1, 0.01);
  EXPECT_NEAR(perplexity(DType::bf16) / exact, 1, 0.001);
}

/// Passes over the whole text and over pages say the same of equal windows.
TEST(KvPool, evaluating_in_pages_gives_the_loss_of_whole_passes) {
  Pool pool(2);
  const Model model = Model::create(
      {.family = "llama", .layers = 2, .heads = 4, .width = 32, .context = 256, .vocab = 256, .kv_heads = 2}, 3);
  const auto text = bytes_of("CONTRIBUTING.md");
  const auto some = std::span(text).first(200);  // one window
  const auto whole = evaluate(model.internal(), pool, some),
             pages = evaluate_in_pages(model.internal(), pool, some, {});
  EXPECT_NEAR(pages.loss, whole.loss, 1e-5);
  EXPECT_EQ(pages.tokens, whole.tokens);
  EXPECT_EQ(evaluate_in_pages(model.internal(), pool, text, {.kv = DType::f32}).tokens, std::ssize(text) - 1)
      << "more windows";
}

}  // namespace
}  // namespace hpcdl::infer

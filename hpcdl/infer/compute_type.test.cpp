// Models that are opened in another type than that of their files.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "hpcdl/core/convert.h"
#include "hpcdl/core/error.h"
#include "hpcdl/infer/engine.h"
#include "hpcdl/infer/evaluate.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/tiny_for_tests.h"

namespace hpcdl::infer {
namespace {

constexpr int kNew = 9;

/// A model whose weights have 8 significant bits, so that every type holds them.
void write(const std::filesystem::path& folder, io::Family family, DType dtype) {
  auto model = models::LanguageModel::create(models::tiny(family), 3, false);
  for (auto& p : model.parameters())
    for (std::int64_t i = 0; i < p.memory.size(); ++i) {
      auto& x = p.memory.ptr<float>()[i];
      x = std::ldexp(std::round(std::ldexp(x * (p.param->decay ? 6.0F : 1.0F), 7)), -7);
    }
  model.save(folder, dtype);
}

/// Prompt scores and new tokens with their scores.
std::vector<float> texts_of(const models::LanguageModel& model, Pool& pool) {
  Engine engine(model, pool, {.context = 16});
  std::vector<float> seen;
  const auto add = [&](const Token& t) { return seen.insert(seen.end(), {static_cast<float>(t.id), t.logprob}), true; };
  engine.submit({.prompt = {1, 12, 23, 34, 45},
                 .tokens = kNew,
                 .sampling = {.ignore_eos = true, .logprobs = 0},
                 .prompt_logprobs = 0,
                 .on_token = add,
                 .on_end = [&](const End& e) { std::ranges::for_each(e.prompt_logprobs, add); }});
  engine.run();
  return seen;
}

class OpenedAs : public testing::TestWithParam<io::Family> {};

TEST_P(OpenedAs, gives_the_bits_of_a_folder_of_that_type) {
  Pool pool(2);
  const io::TempFolder temp;
  const DType types[] = {DType::f32, DType::bf16, DType::f16};
  for (const auto stored : types) write(temp / std::string(dtype_name(stored)), GetParam(), stored);
  std::vector<float> exact;
  for (const auto to : types) {
    std::vector<float> want;
    for (const auto stored : types) {
      SCOPED_TRACE(fmt::format("{} from {}", dtype_name(to), dtype_name(stored)));
      const auto model = models::LanguageModel::open(temp / std::string(dtype_name(stored)), {}, {}, {to, &pool});
      EXPECT_EQ(model.converted_bytes() > 0, stored != to);
      EXPECT_EQ(model.matrix_type(), to);
      EXPECT_EQ(type_of_inference(model), to);
      for (const auto& e : model.parameters()) EXPECT_EQ(e.memory.dtype(), to) << e.name;
      const auto seen = texts_of(model, pool);
      if (want.empty()) want = seen;
      EXPECT_EQ(seen, want);
    }
    if (to == DType::f32) exact = want;
    ASSERT_EQ(want.size(), 2u * (kNew + 4));
    for (std::size_t i = 2 * kNew; i < want.size(); ++i)  // of the prompt, where all types see the same tokens
      EXPECT_NEAR(want[i], exact[i], to == DType::bf16 ? 0.25 : 0.03) << dtype_name(to);
  }
}

TEST_P(OpenedAs, has_nearly_the_loss_of_f32) {
  Pool pool(2);
  const io::TempFolder temp;
  write(temp.path(), GetParam(), DType::f32);
  const auto ids = models::tiny_ids(7);
  const auto loss = [&](DType to) {
    const auto model = models::LanguageModel::open(temp.path(), {}, {}, {to, &pool});
    return evaluate(model, pool, ids, {.compute = type_of_inference(model)}).loss;
  };
  const double exact = loss(DType::f32);
  EXPECT_EQ(loss(DType::none), exact);
  EXPECT_NEAR(loss(DType::bf16), exact, 0.05);
  EXPECT_NEAR(loss(DType::f16), exact, 0.01);
}

INSTANTIATE_TEST_SUITE_P(all, OpenedAs, testing::ValuesIn(models::all_text_families()),
                         [](const auto& c) { return std::string(io::enum_name(c.param)); });

}  // namespace
}  // namespace hpcdl::infer

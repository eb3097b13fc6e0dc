// Logits of a model whose layers several ranks share, against those of one process.

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "hpcdl/core/error.h"
#include "hpcdl/instance.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/parallel/tensor.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl::infer {
namespace {

using models::LanguageModel;
using Scheme = parallel::TensorParallel::Scheme;
constexpr std::int64_t kVocab = 67, kLength = 32;  // a vocabulary that no number of ranks divides

io::ModelConfig small(io::Family family) {
  io::ModelConfig c;
  c.family = family;
  c.layers = 2, c.heads = 8, c.width = 64, c.context = kLength, c.vocab = kVocab, c.tied = family == io::Family::gpt2;
  if (family != io::Family::gpt2) c.kv_heads = 4;
  models::resolve(c);
  return c;
}

std::vector<std::int32_t> prompt(std::int64_t n) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>((i * i * 31 + 7 * i + 3) % kVocab);
  return ids;
}

std::vector<float> logits(const LanguageModel& model, std::int64_t batch, std::int64_t length) {
  Pool pool(1);
  StepParams params;
  Stream s(pool, &params);
  Graph g({.inference = true});
  const Var tokens = g.input("tokens", {{batch, length}, DType::i32});
  const Var out = g.keep(model.logits(g, tokens));
  const Instance exe(g.finish());
  const auto ids = prompt(batch * length);
  copy(s, exe.tensor(tokens), View(ids.data(), {{batch, length}, DType::i32}));
  exe.run(s);
  const Tensor t = exe.tensor(out);
  EXPECT_EQ(t.spec(), (Spec{{batch, length, kVocab}, DType::f32}));
  return {t.ptr<float>(), t.ptr<float>() + t.size()};
}

std::shared_ptr<const parallel::TensorParallel> sharing(const comm::Group& world, Scheme scheme) {
  return std::make_shared<parallel::TensorParallel>(world, scheme);
}

TEST(SharedModel, LogitsAreThoseOfOneProcess) {
  for (const auto family : models::text_families()) {
    const auto want = logits(LanguageModel::create(small(family), 3, false), 2, 16);
    float largest = 0;
    for (const float x : want) largest = std::max(largest, std::fabs(x));
    for (const int n : {2, 4})
      for (const auto scheme : {Scheme::conjugate, Scheme::sequence, Scheme::naive})
        testing::run_ranks(n, [&](const comm::Group& world) {
          const auto got = logits(LanguageModel::create(small(family), 3, false, sharing(world, scheme)), 2, 16);
          ASSERT_EQ(got.size(), want.size());
          float worst = 0;
          for (std::size_t i = 0; i < got.size(); ++i) worst = std::max(worst, std::fabs(got[i] - want[i]));
          EXPECT_LE(worst, 1e-5f * largest) << nn::scheme_name(scheme) << ", rank " << world.rank() << " of " << n;
        });
  }
}

TEST(SharedModel, WhatCannotBeSharedIsRefused) {
  testing::run_ranks(2, [](const comm::Group& world) {
    Graph g;
    const Var out = LanguageModel::create(small(io::Family::gpt2), 3, true, sharing(world, Scheme::conjugate))
                        .logits(g, g.input("tokens", {{1, 8}, DType::i32}));
    EXPECT_THROW(g.backward(g.keep(out)), Error) << "in training the logits are never gathered";
  });
}

}  // namespace
}  // namespace hpcdl::infer

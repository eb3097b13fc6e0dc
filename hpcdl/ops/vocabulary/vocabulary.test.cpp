#include "hpcdl/ops/vocabulary/vocabulary.h"

#include <gtest/gtest.h>

#include <cmath>

#include "hpcdl/core/error.h"
#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/parallel/axis.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl {
namespace {

using Floats = std::vector<float>;
constexpr std::int64_t kVocab = 37, kWidth = 8, kTokens = 12;

Floats draws(std::int64_t n, std::uint64_t stream) {
  Floats v;
  for (std::int64_t i = 0; i < n; ++i)
    v.push_back(static_cast<float>(Rng{5, stream}.normal(static_cast<std::uint64_t>(i))));
  return v;
}

TEST(vocabulary, shares_cover_every_word_once) {
  for (const std::int64_t vocab : {3, 67, 50257, 128256})
    for (const int ranks : {1, 2, 3}) {
      const auto shares = vocabulary_shares(vocab, ranks);
      EXPECT_EQ(shares.begin(0), 0);
      EXPECT_EQ(shares.begin(ranks), vocab);
      for (int r = 0; r < ranks; ++r) EXPECT_GT(shares.count(r), 0) << vocab << ' ' << ranks;
      EXPECT_LE(shares.widest() - vocab / ranks, shares.unit);
    }
  EXPECT_THROW(vocabulary_shares(3, 4), UsageError);
}

struct Result {
  Floats y, loss, dtable;
};

/// Rows of the table for tokens, then the loss with the same table as head, and their gradients.
/// `barriers`: of loss_in_passes(); 0: vocabulary_loss().
Result run(const comm::Group& group, bool keep_logits, int barriers = 0) {
  const auto shares = vocabulary_shares(kVocab, group.size());
  const auto begin = shares.begin(group.rank()), count = shares.count(group.rank());
  const Floats all = draws(kVocab * kWidth, 1);
  Floats mine(all.begin() + begin * kWidth, all.begin() + (begin + count) * kWidth), gradient(mine.size());
  const Spec spec{{count, kWidth}, DType::f32};
  std::vector<std::int32_t> ids, targets;
  for (int i = 0; i < kTokens; ++i) ids.push_back(i * 5 % kVocab), targets.push_back(i == 3 ? -1 : i * 11 % kVocab);
  const parallel::GroupAxis ranks(group);
  Graph g;
  const Var table = g.parameter("table", Tensor(mine.data(), spec), Tensor(gradient.data(), spec));
  const Var tokens = g.input("tokens", {{kTokens}, DType::i32}), labels = g.input("labels", {{kTokens}, DType::i32});
  const Var y = leave(vocabulary_embedding(table, tokens, {}, {.begin = begin}), ranks.axis("table"));
  const VocabularyRows::Args args{keep_logits, begin, kVocab};
  const Var loss = barriers == 0
                       ? vocabulary_loss(enter(y, ranks.axis("head")), table, labels, args, ranks.axis("loss"))
                       : loss_in_passes(y, table, labels, args, ranks.axis("loss"), barriers);
  g.keep(y), g.keep(loss);
  g.backward(loss);
  const Instance exe(g.finish());
  std::copy(ids.begin(), ids.end(), exe.tensor(tokens).ptr<std::int32_t>());
  std::copy(targets.begin(), targets.end(), exe.tensor(labels).ptr<std::int32_t>());
  Pool pool(1);
  StepParams params;
  Stream s(pool, &params);
  exe.run(s);
  const auto get = [&](const Var& v) {
    return Floats(exe.tensor(v).ptr<float>(), exe.tensor(v).ptr<float>() + v.shape().size());
  };
  return {get(y), get(loss), gradient};
}

TEST(vocabulary, ranks_compute_what_one_computes) {
  for (const bool keep : {false, true}) {
    Result want;
    testing::run_ranks(1, [&](const comm::Group& one) { want = run(one, keep); });
    EXPECT_GT(want.loss[0], 1);
    for (const int barriers : {0, 1, 2})
      for (const int n : {1, 2, 3, 5})
        testing::run_ranks(n, [&](const comm::Group& group) {
          const Result got = run(group, keep, barriers);
          EXPECT_EQ(got.y, want.y);
          EXPECT_NEAR(got.loss[0], want.loss[0], 1e-5f * want.loss[0]);
          const auto begin = vocabulary_shares(kVocab, n).begin(group.rank()) * kWidth;
          for (std::size_t i = 0; i < got.dtable.size(); ++i)
            ASSERT_NEAR(got.dtable[i], want.dtable[static_cast<std::size_t>(begin) + i], 2e-5f) << i << ' ' << barriers;
        });
  }
}

/// Statistics of ranks with masks, infinities and targets that no rank has.
TEST(vocabulary, statistics_are_merged) {
  constexpr std::int64_t kRows = 5;
  constexpr float kInf = __builtin_inff();
  // Top, sum, logit of the target, and working memory, of two ranks with three and two words.
  std::vector<float> stats = {1, 7, -kInf, 2, 3, /**/ 2, 1, 3, 1, 1, /**/ 0.5f, 9, -kInf, 9, 9, /**/ 0, 0, 0, 0, 0,
                              3, 7, -kInf, 1, 3, /**/ 1, 1, 2, 4, 1, /**/ 9,    6, 9,     9, 9, /**/ 0, 0, 0, 0, 0};
  std::vector<std::int32_t> targets = {1, 4, 0, -1, 5};
  std::vector<float> top(kRows), sums(2 * kRows);
  const Spec row{{kRows}, DType::f32};
  cpu::merge_rows(Tensor(top.data(), row), Tensor(sums.data(), {{2, kRows}, DType::f32}),
                  View(stats.data(), {{8, kRows}, DType::f32}), View(targets.data(), {{kRows}, DType::i32}),
                  {.vocab = 5, .ranks = 2});
  EXPECT_EQ(top, (std::vector<float>{3, 7, -kInf, 2, 3}));
  EXPECT_NEAR(sums[0], 1 + 2 * std::exp(-2.0), 1e-6);
  EXPECT_EQ(sums[1], 2);
  EXPECT_EQ(sums[2], 5) << "nothing is rescaled where all logits are -inf";
  EXPECT_NEAR(sums[3], 1 + 4 * std::exp(-1.0), 1e-6);
  EXPECT_EQ(sums[5], 0.5f);
  EXPECT_EQ(sums[6], 6);
  EXPECT_EQ(sums[7], -kInf);
  EXPECT_TRUE(std::isnan(sums[9])) << "no rank has such a target";
}

}  // namespace
}  // namespace hpcdl

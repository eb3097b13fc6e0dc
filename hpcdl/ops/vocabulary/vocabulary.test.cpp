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
Result run(const comm::Group& group, bool keep_logits) {
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
  const Var h = enter(y, ranks.axis("head"));
  const Var loss = vocabulary_loss(h, table, labels, {keep_logits, begin, kVocab}, ranks.axis("loss"));
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
    for (const int n : {2, 3, 5})
      testing::run_ranks(n, [&](const comm::Group& group) {
        const Result got = run(group, keep);
        EXPECT_EQ(got.y, want.y);
        EXPECT_NEAR(got.loss[0], want.loss[0], 1e-5f * want.loss[0]);
        const auto begin = vocabulary_shares(kVocab, n).begin(group.rank()) * kWidth;
        for (std::size_t i = 0; i < got.dtable.size(); ++i)
          ASSERT_NEAR(got.dtable[i], want.dtable[static_cast<std::size_t>(begin) + i], 2e-5f) << i;
      });
  }
}

}  // namespace
}  // namespace hpcdl

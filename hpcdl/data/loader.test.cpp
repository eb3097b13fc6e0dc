#include "hpcdl/data/loader.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "hpcdl/core/error.h"
#include "hpcdl/data/permute.h"

namespace hpcdl::data {
namespace {

std::vector<TokenId> counting(std::size_t n, TokenId from = 0) {
  std::vector<TokenId> tokens(n);
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

std::vector<TokenFile> one_file(std::size_t n) { return {TokenFile::from_tokens(counting(n))}; }

/// First tokens of the rows of the next batches, which identify the samples.
std::vector<TokenId> take(Loader& loader, int batches, std::int64_t context) {
  std::vector<TokenId> firsts;
  for (int b = 0; b < batches; ++b) {
    const Batch& batch = loader.next();
    EXPECT_EQ(batch.valid, static_cast<std::int64_t>(batch.targets.size()));
    for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
      EXPECT_EQ(batch.targets[i], batch.tokens[i] + 1);
      if (i % static_cast<std::size_t>(context) == 0) firsts.push_back(batch.tokens[i]);
    }
  }
  return firsts;
}

TEST(permutation, visits_everything_once_and_differs_by_seed_and_epoch) {
  for (const std::uint64_t n : {1u, 2u, 3u, 4u, 5u, 16u, 17u, 1000u, 4097u}) {
    std::set<std::uint64_t> seen;
    const Permutation p(n, 7, 3);
    for (std::uint64_t i = 0; i < n; ++i) {
      EXPECT_LT(p(i), n);
      seen.insert(p(i));
    }
    EXPECT_EQ(seen.size(), n);
  }
  int same_seed = 0, same_epoch = 0, fixed = 0;
  const Permutation a(1000, 1, 0), b(1000, 2, 0), c(1000, 1, 1);
  for (std::uint64_t i = 0; i < 1000; ++i) same_seed += a(i) == b(i), same_epoch += a(i) == c(i), fixed += a(i) == i;
  // The expected count is one for random permutations; by Poisson, 12 is less likely than 1e-8.
  EXPECT_LT(same_seed, 12);
  EXPECT_LT(same_epoch, 12);
  EXPECT_LT(fixed, 12);
}

TEST(permutation, every_first_place_is_about_as_likely) {
  // 8 values, 8000 seeds: 1000 each with a standard deviation of 30.
  std::map<std::uint64_t, int> first;
  for (std::uint64_t seed = 0; seed < 8000; ++seed) ++first[Permutation(8, seed, 0)(0)];
  for (const auto& [value, n] : first) EXPECT_NEAR(n, 1000, 6 * 30) << value;
}

TEST(loader, an_epoch_has_every_sample_once) {
  Loader loader(one_file(8 * 10 + 1), {.batch = 5, .context = 8, .seed = 3});
  EXPECT_EQ(loader.samples_per_epoch(), 10);
  const auto one = take(loader, 2, 8);
  EXPECT_EQ(loader.state(), (LoaderState{1, 0}));
  const auto two = take(loader, 2, 8);
  const auto sorted = [](std::vector<TokenId> v) { return std::set<TokenId>(v.begin(), v.end()); };
  EXPECT_EQ(sorted(one).size(), 10u);
  EXPECT_EQ(sorted(one), sorted(two));
  EXPECT_NE(one, two);
}

TEST(loader, prefetching_changes_nothing) {
  std::vector<TokenId> want;
  for (const int prefetch : {1, 2, 7}) {
    Loader loader(one_file(500), {.batch = 3, .context = 8, .seed = 9, .prefetch = prefetch});
    const auto got = take(loader, 60, 8);
    if (want.empty()) want = got;
    EXPECT_EQ(got, want) << prefetch;
  }
}

TEST(loader, resumes_anywhere) {
  const LoaderOptions options{.batch = 3, .context = 8, .seed = 5};
  Loader whole(one_file(300), options);
  const auto want = take(whole, 40, 8);
  for (int stop = 1; stop < 40; stop += 6) {
    Loader first(one_file(300), options);
    auto got = take(first, stop, 8);
    Loader second(one_file(300), options, first.state());
    const auto rest = take(second, 40 - stop, 8);
    got.insert(got.end(), rest.begin(), rest.end());
    EXPECT_EQ(got, want) << stop;
  }
}

TEST(loader, ranks_share_one_order) {
  Loader alone(one_file(1000), {.batch = 6, .context = 8, .seed = 5});
  std::vector<std::unique_ptr<Loader>> ranks;
  for (int r = 0; r < 3; ++r)
    ranks.push_back(std::make_unique<Loader>(
        one_file(1000), LoaderOptions{.batch = 2, .context = 8, .seed = 5, .rank = r, .world = 3}));
  for (int step = 0; step < 50; ++step) {
    std::vector<TokenId> together;
    for (auto& r : ranks) {
      const auto part = take(*r, 1, 8);
      together.insert(together.end(), part.begin(), part.end());
      EXPECT_EQ(r->state(), ranks[0]->state());
    }
    ASSERT_EQ(together, take(alone, 1, 8));
  }
}

TEST(loader, a_batch_larger_than_the_epoch_goes_on_into_the_next) {
  Loader loader(one_file(8 * 3 + 1), {.batch = 8, .context = 8, .seed = 1});
  const auto firsts = take(loader, 3, 8);
  std::map<TokenId, int> seen;
  for (const TokenId t : firsts) ++seen[t];
  for (const auto& [t, n] : seen) EXPECT_EQ(n, 8) << t;
  EXPECT_EQ(loader.state(), (LoaderState{8, 0}));
}

TEST(loader, no_sample_crosses_files) {
  std::vector<TokenFile> files = {TokenFile::from_tokens(counting(20)), TokenFile::from_tokens(counting(5, 500)),
                                  TokenFile::from_tokens(counting(30, 1000))};
  Loader loader(files, {.batch = 1, .context = 8, .seed = 1});
  EXPECT_EQ(loader.samples_per_epoch(), 2 + 0 + 3);
  take(loader, 5, 8);
}

TEST(loader, too_little_text_and_foreign_tokens_are_errors) {
  EXPECT_THROW(Loader(one_file(8), {.batch = 1, .context = 8}), Error);
  Loader exact(one_file(9), {.batch = 1, .context = 8});
  EXPECT_EQ(exact.samples_per_epoch(), 1);
  Loader foreign(one_file(100), {.batch = 1, .context = 8, .vocab = 10});
  EXPECT_THROW(
      {
        for (int i = 0; i < 30; ++i) foreign.next();
      },
      Error);
  EXPECT_THROW(foreign.next(), Error);
  EXPECT_THROW(Loader(one_file(100), {.batch = 0, .context = 8}), Error);
  EXPECT_THROW(Loader(one_file(100), {.batch = 1, .context = 8, .rank = 2, .world = 2}), Error);
}

TEST(loader, an_unused_loader_stops) {
  Loader loader(one_file(1000), {.batch = 2, .context = 8, .prefetch = 3});
  EXPECT_EQ(loader.waited_seconds(), 0);
}

TEST(eval_batches, every_target_once) {
  std::vector<TokenFile> files = {TokenFile::from_tokens(counting(21)), TokenFile::from_tokens(counting(9, 100)),
                                  TokenFile::from_tokens(counting(1, 200))};
  for (const int world : {1, 2}) {
    std::multiset<TokenId> targets;
    std::int64_t valid = 0;
    for (int rank = 0; rank < world; ++rank) {
      EvalBatches eval(files, 3, 8, 300, rank, world);
      EXPECT_EQ(eval.targets(), 20 + 8);
      for (const Batch* b = eval.next(); b; b = eval.next()) {
        valid += b->valid;
        for (std::size_t i = 0; i < b->targets.size(); ++i) {
          if (b->targets[i] < 0) continue;
          targets.insert(b->targets[i]);
          EXPECT_EQ(b->targets[i], b->tokens[i] + 1);
        }
      }
      eval.rewind();
      EXPECT_NE(eval.next(), nullptr);
    }
    EXPECT_EQ(valid, 28);
    EXPECT_EQ(targets.size(), 28u);
    for (TokenId t = 1; t <= 20; ++t) EXPECT_EQ(targets.count(t), 1u) << t;
  }
  EXPECT_THROW(EvalBatches(one_file(1), 1, 8, 0), Error);
}

}  // namespace
}  // namespace hpcdl::data

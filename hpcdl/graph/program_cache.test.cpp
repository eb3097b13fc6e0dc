#include "hpcdl/instance.h"

#include <gtest/gtest.h>

#include <thread>

#include "hpcdl/ops/softmax/softmax.h"

namespace hpcdl {
namespace {

/// softmax of (4, n).
Pass softmax_of(std::int64_t n) {
  Graph g({.inference = true});
  const Var x = g.input("x", {{4, n}, DType::f32});
  return Pass::of(g, {x}, {softmax(x)});
}

TEST(program_cache, records_and_plans_once_for_all_threads) {
  ProgramCache cache;
  std::atomic<int> recorded = 0;
  std::vector<std::shared_ptr<const Pass>> seen(8);
  {
    std::vector<std::jthread> threads;
    for (auto& pass : seen)
      threads.emplace_back([&] { pass = cache.pass("4 x 8", [&] { return ++recorded, softmax_of(8); }); });
  }
  EXPECT_EQ(recorded, 1);
  for (const auto& pass : seen) EXPECT_EQ(pass, seen[0]);
  EXPECT_NE(cache.pass("4 x 16", [] { return softmax_of(16); })->planned, seen[0]->planned);
  EXPECT_GT(seen[0]->planned->plan.arena_bytes, 0);
}

TEST(program_cache, instances_of_one_pass_have_memory_of_their_own) {
  ProgramCache cache;
  const auto pass = cache.pass("4 x 8", [] { return softmax_of(8); });
  const Instance a(*pass), b(*pass);
  EXPECT_EQ(&a.program(), &b.program());
  EXPECT_NE(a.input(0).data(), b.input(0).data());
  for (std::int64_t i = 0; i < 32; ++i) a.input(0).ptr<float>()[i] = 0, b.input(0).ptr<float>()[i] = 1000.0f * (i % 8);
  Pool pool(1);
  Stream s(pool);
  a.run(s), b.run(s);
  EXPECT_FLOAT_EQ(a.output(0).ptr<float>()[7], 0.125f);
  EXPECT_FLOAT_EQ(b.output(0).ptr<float>()[7], 1);
}

TEST(program_cache, forgotten_passes_stay_valid_for_their_users) {
  ProgramCache cache;
  int recorded = 0;
  const auto ask = [&](const std::string& key) { return cache.pass(key, [&] { return ++recorded, softmax_of(8); }); };
  const auto pass = ask("a");
  cache.clear();
  EXPECT_NE(ask("a"), pass);
  EXPECT_EQ(recorded, 2);
  EXPECT_EQ(pass->planned->program.records.size(), 1u);
  for (int i = 0; i < 1000; ++i) ask(std::to_string(i));  // a cache that kept all of them would grow for ever
  EXPECT_EQ(recorded, 1002);
  EXPECT_EQ(ask("999"), ask("999"));
}

}  // namespace
}  // namespace hpcdl

// Training whose bits do not depend on the number of ranks that share each batch.

#include <fmt/format.h>

#include "hpcdl/testing/mesh_runs.h"
#include "hpcdl/train/gradient_tree.h"
#include "hpcdl/train/runs_for_tests.h"

namespace hpcdl::train {
namespace {

using parallel::MeshShape;
using Change = std::function<void(RunConfig&)>;

constexpr std::int64_t kLeaves = 8;

struct Invariant : testing::MeshRuns {
  /// A run of kLeaves micro-batches of two rows a step, whatever the number of ranks.
  std::string run_leaves(const MeshShape& mesh, const std::string& of, const Change& change,
                         std::int64_t stop_at = -1) {
    const auto name = fmt::format("{} dp{} tp{}", of, mesh.dp, mesh.tp);
    run_on(
        mesh, name,
        [&](RunConfig& c) {
          c.parallel.invariant = true;
          c.train.batch = 2, c.train.accumulate = kLeaves / mesh.dp;
          c.train.steps = 4, c.train.eval_every = 2, c.train.eval_batches = 0, c.train.dropout = 0.1;
          change(c);
        },
        stop_at);
    return name;
  }

  /// Losses, norms, evaluations and weights.
  void expect_same_bits(const std::string& got, const std::string& want) {
    expect_same_file(tmp.path() / got / "model/model.safetensors", tmp.path() / want / "model/model.safetensors");
    for (const char* key : {"loss", "grad_norm", "eval_loss"})
      EXPECT_EQ(numbers(got, key), numbers(want, key)) << got << ' ' << key;
  }
};

TEST_F(Invariant, any_number_of_ranks_gives_the_same_bits) {
  const auto plain = [](RunConfig&) {};
  const auto one = run_leaves({}, "plain", plain);
  for (const int dp : {2, 4, 8}) expect_same_bits(run_leaves({.dp = dp}, "plain", plain), one);
}

/// With tied weights, whose gradient has two summands, dropout and 16-bit products; every stage of zero.
TEST_F(Invariant, so_do_all_stages_of_zero) {
  const auto of = [](int zero) {
    return [zero](RunConfig& c) {
      c.parallel.zero = zero, c.train.dtype = Compute::bf16, c.train.recompute = zero == 3;
      c.model.family = io::Family::gpt2;
    };
  };
  const auto one = run_leaves({}, "zero", of(0));
  for (const int zero : {0, 1, 2, 3})
    for (const int dp : {2, 8}) expect_same_bits(run_leaves({.dp = dp}, fmt::format("zero {}", zero), of(zero)), one);
}

TEST_F(Invariant, ranks_that_share_weights_may_share_batches) {
  const auto plain = [](RunConfig& c) { c.train.dtype = Compute::fp16; };
  const auto one = run_leaves({.tp = 2}, "tp", plain);
  expect_same_bits(run_leaves({.dp = 2, .tp = 2}, "tp", plain), one);
  expect_same_bits(run_leaves({.dp = 4, .tp = 2}, "tp", plain), one);
}

TEST_F(Invariant, a_stopped_run_goes_on_with_other_ranks) {
  const auto plain = [](RunConfig&) {};
  const auto whole = run_leaves({}, "whole", plain);
  run_leaves({.dp = 4}, "stopped", plain, 2);
  const auto rest = "stopped dp4 tp1";
  run_on({.dp = 2}, rest, [&](RunConfig& c) {
    c.parallel.invariant = true;
    c.train.batch = 2, c.train.accumulate = kLeaves / 2;
    c.train.steps = 4, c.train.eval_every = 2, c.train.eval_batches = 0, c.train.dropout = 0.1;
  });
  expect_same_file(tmp.path() / rest / "model/model.safetensors", tmp.path() / whole / "model/model.safetensors");
}

/// Two GPUs add what one adds.
TEST_F(Invariant, two_gpus_give_the_bits_of_one) {
  if (cuda_devices() < 2) GTEST_SKIP() << "SKIPPED: needs 2 GPUs, this process sees " << cuda_devices();
  for (const auto dtype : {Compute::f32, Compute::bf16})
    for (const int zero : {0, 2}) {
      const auto run_leaves_on = [&](int ranks) {
        const auto name = fmt::format("gpu {} {} {}", static_cast<int>(dtype), zero, ranks);
        testing::run_ranks(ranks, [&](const comm::Group& world) {
          RunConfig c;
          toy_config(c, tmp, name);
          c.parallel.invariant = true, c.parallel.dp = ranks, c.parallel.zero = zero;
          c.train.device = fmt::format("cuda:{}", world.rank()), c.train.dtype = dtype;
          c.train.batch = 2, c.train.accumulate = kLeaves / ranks, c.train.dropout = 0.1, c.train.eval_batches = 0;
          Hooks hooks;
          hooks.world = world;
          run(c, hooks);
        });
        return name;
      };
      const auto one = run_leaves_on(1);
      expect_same_bits(run_leaves_on(2), one);
    }
}

TEST(GradientTree, takes_neighbours_of_each_level_after_each_other) {
  const GradientTree tree({}, 8, {}, true), one({}, 1, {}, true);
  std::vector<std::int64_t> micros, sums;
  for (std::int64_t i = 0; i < tree.leaves(); ++i) micros.push_back(tree.micro(i)), sums.push_back(tree.sums(i));
  EXPECT_EQ(micros, (std::vector<std::int64_t>{0, 4, 2, 6, 1, 5, 3, 7}));
  EXPECT_EQ(sums, (std::vector<std::int64_t>{0, 1, 0, 2, 0, 1, 0, 3}));
  EXPECT_EQ(one.leaves(), 1);
  EXPECT_EQ(one.micro(0), 0);
  EXPECT_THROW(GradientTree({}, 6, {}, true), Error);
}

}  // namespace
}  // namespace hpcdl::train

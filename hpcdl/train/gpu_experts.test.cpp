// GPUs that divide the experts of mixtures train like one: ranks that are threads, each with its own GPU.

#include <algorithm>

#include "hpcdl/testing/mesh_runs.h"
#include "hpcdl/train/runs_for_tests.h"

namespace hpcdl::train {
namespace {

using parallel::MeshShape;
using Change = std::function<void(RunConfig&)>;

struct GpuExperts : testing::MeshRuns {
  void SetUp() override {
    if (cuda_devices() < 2) GTEST_SKIP() << "SKIPPED: needs 2 GPUs, this process sees " << cuda_devices();
  }

  /// A run of a mixture of eight experts into tmp/NAME.
  void run_mixture(const MeshShape& mesh, const std::string& name, const Change& change) {
    testing::run_ranks(mesh.size(), [&](const comm::Group& world) {
      RunConfig c;
      toy_config(c, tmp, name);
      c.model.family = io::Family::mixtral, c.model.heads = 4;
      c.model.experts = 8, c.model.chosen_experts = 2, c.model.expert_ffn = 24, c.model.balance = 0.01;
      c.train.batch = 8 / mesh.dp, c.train.lr = 1e-3, c.train.steps = 16, c.train.warmup = 4, c.train.eval_every = 8;
      c.train.threads = 1, c.train.device = fmt::format("cuda:{}", world.rank());
      c.parallel.dp = mesh.dp, c.parallel.cp = mesh.cp, c.parallel.ep = mesh.ep;
      change(c);
      Hooks hooks;
      hooks.world = world;
      run(c, hooks);
    });
  }

  /// Losses, norms, evaluations and weights.
  void expect_same_bits(const std::string& got, const std::string& want) {
    expect_same_file(tmp.path() / got / "model/model.safetensors", tmp.path() / want / "model/model.safetensors");
    for (const char* key : {"loss", "grad_norm", "eval_loss"}) EXPECT_EQ(numbers(got, key), numbers(want, key)) << key;
  }
};

TEST_F(GpuExperts, two_train_as_one_does) {
  for (const bool recompute : {false, true}) {
    const auto plain = [&](RunConfig& c) { c.train.recompute = recompute, c.train.accumulate = recompute ? 2 : 1; };
    const auto one = fmt::format("one {}", recompute);
    run_mixture({}, one, plain);
    for (const auto& mesh : {MeshShape{.dp = 2, .ep = 2}, {.cp = 2, .ep = 2}}) {
      const auto two = fmt::format("dp{} {}", mesh.dp, recompute);
      run_mixture(mesh, two, plain);
      expect_parity(two, one);
    }
  }
}

/// In 16 bits, whose products have kernels of their own for many choices.
TEST_F(GpuExperts, two_runs_have_the_same_bits) {
  const auto wide = [](RunConfig& c) {
    c.train.dtype = Compute::bf16, c.train.dropout = 0.1;
    c.model.width = 64, c.model.context = 256, c.model.expert_ffn = 64;
  };
  run_mixture({}, "one", wide), run_mixture({.dp = 2, .ep = 2}, "two", wide);
  run_mixture({.dp = 2, .ep = 2}, "again", wide);
  expect_same_bits("two", "again");
  const auto one = numbers("one", "loss"), two = numbers("two", "loss");
  ASSERT_EQ(one.size(), two.size());
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(two[i], one[i], 0.02 * one[i]) << i;
}

TEST_F(GpuExperts, dividing_other_state_changes_no_bit) {
  for (const std::int64_t accumulate : {1, 2}) {
    const auto run = [&](int zero) {
      const auto name = fmt::format("zero {} {}", zero, accumulate);
      run_mixture({.dp = 2, .ep = 2}, name,
                  [&](RunConfig& c) { c.train.accumulate = accumulate, c.parallel.zero = zero; });
      return name;
    };
    const auto whole = run(0);
    for (const int zero : {1, 2, 3}) expect_same_bits(run(zero), whole);
  }
}

/// The host learns that tokens did not fit after it has queued the passes of the next step.
TEST_F(GpuExperts, too_little_room_changes_no_bit) {
  for (const auto dtype : {Compute::f32, Compute::fp16})
    for (const std::int64_t accumulate : {1, 2}) {
      const auto run = [&](const std::string& name, double capacity) {
        run_mixture({.dp = 2, .ep = 2}, name, [&](RunConfig& c) {
          c.capacity = capacity, c.train.accumulate = accumulate, c.train.dtype = dtype;
          c.parallel.zero = dtype == Compute::f32 ? 2 : 0;
        });
      };
      const auto of = fmt::format("{} {}", static_cast<int>(dtype), accumulate), whole = "all " + of,
                 some = "some " + of;
      run(whole, 0), run(some, 0.1);
      expect_same_bits(some, whole);
      EXPECT_GT(numbers(some, "runs_again").back(), 2) << "0.1, 0.2, 0.4, ...";
      EXPECT_TRUE(numbers(whole, "runs_again").empty());
    }
}

}  // namespace
}  // namespace hpcdl::train

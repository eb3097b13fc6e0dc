// Training on ranks that share the tokens of every row, which are threads here.

#include "hpcdl/testing/mesh_runs.h"
#include "hpcdl/train/runs_for_tests.h"

namespace hpcdl::train {
namespace {

using Mode = nn::ContextShare::Mode;
using Change = std::function<void(RunConfig&)>;

struct Context : testing::MeshRuns {
  /// Losses, norms, evaluations and weights on each of the meshes are those of one rank.
  void expect_like_one_rank(const std::string& name, const std::vector<parallel::MeshShape>& meshes,
                            const Change& change, const std::vector<Mode>& modes = {Mode::gather}) {
    const auto all = [&](RunConfig& c) {
      c.train.steps = 12, c.train.eval_every = 6, c.train.lr = 1e-3, c.train.warmup = 12, c.train.accumulate = 2;
      change(c);
    };
    run_on({}, name, all);
    for (const auto& mesh : meshes)
      for (const auto mode : modes) {
        const auto run =
            fmt::format("{} pp{} dp{} cp{} tp{} {}", name, mesh.pp, mesh.dp, mesh.cp, mesh.tp, io::enum_name(mode));
        run_on(mesh, run, [&](RunConfig& c) { all(c), c.parallel.cp_mode = mode; });
        expect_parity(run, name);
      }
  }
};

/// Rotary positions, and seven heads that share the one of keys and values.
TEST_F(Context, grouped_heads_train_as_on_one_rank) {
  expect_like_one_rank("llama", {{.cp = 2}, {.cp = 4}, {.dp = 2, .cp = 2}}, [](RunConfig& c) {
    c.model.heads = 7, c.model.kv_heads = 1, c.model.width = 70, c.train.dropout = 0.1;
  });
}

/// Learned positions, a packed projection, and heads of five elements.
TEST_F(Context, learned_positions_train_as_on_one_rank) {
  expect_like_one_rank("gpt2", {{.cp = 2}, {.cp = 4}, {.dp = 2, .cp = 2}},
                       [](RunConfig& c) {
                         c.model.family = io::Family::gpt2, c.model.width = 20, c.train.dropout = 0.1,
                         c.train.recompute = true;
                       },
                       {Mode::gather, Mode::ulysses, Mode::ring, Mode::zigzag});
}

TEST_F(Context, beside_tensor_parallelism_it_trains_as_on_one_rank) {
  for (const auto family : {io::Family::llama, io::Family::gpt2})
    expect_like_one_rank(std::string(io::enum_name(family)), {{.cp = 2, .tp = 2}},
                         [&](RunConfig& c) { c.model.family = family, c.train.dropout = 0.1; },
                         {Mode::gather, Mode::ulysses, Mode::zigzag});
}

/// The ranks that have a stage share the rows of a micro-batch, also in the halves of a backward pass.
TEST_F(Context, in_stages_of_pipelines_it_trains_as_on_one_rank) {
  for (const auto* schedule : {"1f1b", "zero_bubble"})
    expect_like_one_rank(schedule, {{.pp = 2, .cp = 2}},
                         [&](RunConfig& c) {
                           c.train.accumulate = 4, c.train.dropout = 0.1;
                           if (c.parallel.pp > 1) c.parallel.schedule = schedule;
                         },
                         {Mode::gather, Mode::ulysses, Mode::ring, Mode::zigzag});
  expect_like_one_rank("gpt2 in stages", {{.pp = 2, .dp = 2, .cp = 2}},
                       [](RunConfig& c) {
                         c.model.family = io::Family::gpt2, c.train.recompute = true;
                         if (c.parallel.pp > 1) c.parallel.schedule = "1f1b", c.parallel.zero = 2;
                       },
                       {Mode::zigzag});
}

/// Rows of 2 cp k tokens, on two to eight ranks.
TEST_F(Context, keys_that_go_around_train_as_on_one_rank) {
  expect_like_one_rank("around", {{.cp = 2}, {.cp = 8}, {.dp = 2, .cp = 4}},
                       [](RunConfig& c) { c.model.kv_heads = 2, c.train.dropout = 0.1, c.train.recompute = true; },
                       {Mode::zigzag});
  expect_like_one_rank("three", {{.cp = 3}}, [](RunConfig& c) { c.train.length = 12; }, {Mode::ring, Mode::zigzag});
}

/// Partial results are rounded to 16 bits more often than on one rank.
TEST_F(Context, keys_that_go_around_train_in_16_bits) {
  const auto change = [](RunConfig& c) { c.train.dtype = Compute::bf16, c.train.lr = 1e-3, c.train.steps = 12; };
  run_on({}, "one", change);
  run_on({.cp = 4}, "four", [&](RunConfig& c) { change(c), c.parallel.cp_mode = Mode::zigzag; });
  const auto want = numbers("one", "loss"), got = numbers("four", "loss");
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-3 * want[i]) << i;
}

/// The same between GPUs: every exact product, and heads of 64 in 16 bits, which have other kernels.
TEST_F(Context, gpus_train_as_one) {
  if (cuda_devices() < 2) GTEST_SKIP() << "SKIPPED: needs 2 GPUs, this process sees " << cuda_devices();
  const std::vector<Mode> modes{Mode::gather, Mode::ring, Mode::zigzag};
  expect_like_one_rank(
      "gpus", {{.cp = 2}},
      [](RunConfig& c) { c.train.device = "cuda", c.model.kv_heads = 2, c.train.recompute = true; }, modes);
  const auto change = [](RunConfig& c) {
    c.train.device = "cuda", c.train.dtype = Compute::bf16, c.train.lr = 1e-3, c.train.steps = 12;
    c.model.width = 256, c.model.context = 256;
  };
  run_on({}, "one", change);
  for (const auto mode : modes) {
    const std::string name(io::enum_name(mode));
    run_on({.cp = 2}, name, [&](RunConfig& c) { change(c), c.parallel.cp_mode = mode; });
    const auto want = numbers("one", "loss"), got = numbers(name, "loss");
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-3 * want[i]) << name << ", " << i;
  }
}

/// Windows that are shorter than a chunk, caps, and a norm of each head.
TEST_F(Context, sliding_windows_train_as_on_one_rank) {
  expect_like_one_rank(
      "mistral", {{.cp = 2}},
      [](RunConfig& c) { c.model.family = io::Family::mistral, c.model.kv_heads = 2, c.model.window = 5; },
      {Mode::gather, Mode::ulysses, Mode::ring, Mode::zigzag});
  expect_like_one_rank("gemma2", {{.cp = 2}}, [](RunConfig& c) { c.model.family = io::Family::gemma2; },
                       {Mode::zigzag});
  expect_like_one_rank("qwen3", {{.cp = 2}}, [](RunConfig& c) { c.model.family = io::Family::qwen3; },
                       {Mode::gather, Mode::zigzag});
}

/// The ranks along dp and cp divide the state of the training: the same bits as without.
TEST_F(Context, dividing_the_state_changes_no_bit) {
  const auto change = [](RunConfig& c) {
    c.train.accumulate = 2, c.train.dropout = 0.1, c.parallel.cp_mode = Mode::zigzag;
  };
  const parallel::MeshShape mesh{.dp = 2, .cp = 2};
  run_on(mesh, "zero0", change);
  for (const int zero : {1, 2, 3}) {
    const auto name = fmt::format("zero{}", zero);
    run_on(mesh, name, [&](RunConfig& c) { change(c), c.parallel.zero = zero; });
    expect_same_file(tmp.path() / name / "model/model.safetensors", tmp.path() / "zero0/model/model.safetensors");
    EXPECT_EQ(numbers(name, "loss"), numbers("zero0", "loss"));
    EXPECT_EQ(numbers(name, "eval_loss"), numbers("zero0", "eval_loss"));
  }
}

/// A checkpoint of one mesh can be used by any other.
TEST_F(Context, a_stopped_run_goes_on_on_any_mesh) {
  const auto plain = [](RunConfig& c) {
    c.train.lr = 1e-3, c.train.warmup = 6;
    if (c.parallel.cp > 1) c.parallel.cp_mode = c.parallel.tp > 1 ? Mode::gather : Mode::zigzag;
  };
  run_on({}, "one", plain);
  const parallel::MeshShape context{.cp = 2};
  for (const auto& other : {parallel::MeshShape{}, {.dp = 2}, {.cp = 4}, {.cp = 2, .tp = 2}}) {
    const auto name = fmt::format("{}{}{}", other.dp, other.cp, other.tp);
    for (const auto& [from, to, run] : {std::tuple{context, other, "from" + name}, {other, context, "to" + name}}) {
      EXPECT_TRUE(run_on(from, run, plain, 3).stopped);
      EXPECT_EQ(run_on(to, run, plain).first_step, 3);
      EXPECT_NEAR(numbers(run, "loss").back(), numbers("one", "loss").back(), 1e-5 * numbers("one", "loss").back());
    }
  }
}

}  // namespace
}  // namespace hpcdl::train

// Training of mixtures on ranks that divide the experts, which are threads here.

#include "hpcdl/testing/mesh_runs.h"
#include "hpcdl/train/runs_for_tests.h"

namespace hpcdl::train {
namespace {

using parallel::MeshShape;
using Change = std::function<void(RunConfig&)>;

struct Experts : testing::MeshRuns {
  /// A run of a mixture of four experts.
  RunSummary run_mixture(const MeshShape& mesh, const std::string& name, const Change& change,
                         std::int64_t stop_at = -1) {
    return run_on(
        mesh, name,
        [&](RunConfig& c) {
          c.model.family = io::Family::mixtral;
          c.model.experts = 4, c.model.chosen_experts = 2, c.model.expert_ffn = 24, c.model.balance = 0.01;
          c.train.lr = 1e-3, c.train.warmup = 12, c.train.steps = 12, c.train.eval_every = 6;
          change(c);
        },
        stop_at);
  }

  void expect_like_one_rank(const std::string& name, const std::vector<MeshShape>& meshes, const Change& change) {
    run_mixture({}, name, change);
    for (const auto& mesh : meshes) {
      const auto run = fmt::format("{} dp{} cp{} tp{} ep{}", name, mesh.dp, mesh.cp, mesh.tp, mesh.ep);
      run_mixture(mesh, run, change);
      expect_parity(run, name);
    }
  }

  /// Losses, norms, evaluations and weights.
  void expect_same_bits(const std::string& got, const std::string& want) {
    expect_same_file(tmp.path() / got / "model/model.safetensors", tmp.path() / want / "model/model.safetensors");
    for (const char* key : {"loss", "grad_norm", "eval_loss"}) EXPECT_EQ(numbers(got, key), numbers(want, key)) << key;
  }
};

TEST_F(Experts, ranks_train_as_one_rank_does) {
  expect_like_one_rank("mixtral", {{.dp = 2, .ep = 2}, {.dp = 4, .ep = 4}, {.dp = 4, .ep = 2}, {.dp = 8, .ep = 4}},
                       [](RunConfig& c) { c.train.steps = 50, c.train.eval_every = 25; });
}

/// Of so many experts, some have no token in most micro-batches.
TEST_F(Experts, many_experts_and_micro_batches_train_as_on_one_rank) {
  expect_like_one_rank("qwen3_moe", {{.dp = 2, .ep = 2}, {.dp = 2, .tp = 2, .ep = 2}}, [](RunConfig& c) {
    c.model.family = io::Family::qwen3_moe;
    c.model.experts = 64, c.model.chosen_experts = 3, c.model.expert_ffn = 8;
    c.train.accumulate = 2, c.train.recompute = true, c.train.dropout = 0.1;
  });
}

TEST_F(Experts, beside_other_axes_they_train_as_on_one_rank) {
  expect_like_one_rank("axes",
                       {{.cp = 2}, {.cp = 2, .ep = 2}, {.dp = 2, .cp = 2, .ep = 4}, {.dp = 2, .tp = 2, .ep = 2}},
                       [](RunConfig&) {});
}

/// Each stage of a pipeline has the experts of its layers, divided among its replicas.
TEST_F(Experts, in_stages_of_pipelines_they_train_as_on_one_rank) {
  const auto micros = [](RunConfig& c) { c.train.accumulate = 4, c.train.batch /= 2; };
  run_mixture({}, "whole", micros);
  std::string first;
  for (const auto& [schedule, zero] : {std::pair{"1f1b", 0}, {"zero_bubble", 2}, {"gpipe", 3}}) {
    const auto name = fmt::format("{} {}", schedule, zero);
    run_mixture({.pp = 2, .dp = 2, .ep = 2}, name, [&, schedule = schedule, zero = zero](RunConfig& c) {
      micros(c);
      c.parallel.schedule = schedule, c.parallel.zero = zero;
    });
    expect_parity(name, "whole");
    if (first.empty()) first = name;
    else expect_same_bits(name, first);
  }
}

/// What is left of the state of experts stays whole, and the rest is divided: the same bits.
TEST_F(Experts, dividing_other_state_changes_no_bit) {
  for (const std::int64_t accumulate : {1, 2}) {
    const auto run = [&](int zero) {
      const auto name = fmt::format("zero {} {}", zero, accumulate);
      run_mixture({.dp = accumulate == 1 ? 4 : 2, .ep = 2}, name,
                  [&](RunConfig& c) { c.train.accumulate = accumulate, c.train.steps = 6, c.parallel.zero = zero; });
      return name;
    };
    const auto whole = run(0);
    for (const int zero : {1, 2, 3}) expect_same_bits(run(zero), whole);
  }
}

/// A step that needs more room is run again: what was dropped leaves no trace.
TEST_F(Experts, too_little_room_changes_no_bit) {
  for (const std::int64_t accumulate : {1, 2}) {
    const auto run = [&](const std::string& name, double capacity) {
      run_mixture({.dp = 2, .ep = 2}, name, [&](RunConfig& c) {
        c.capacity = capacity, c.train.accumulate = accumulate, c.train.dropout = 0.1;
        c.parallel.zero = accumulate == 1 ? 0 : 2;
      });
    };
    const auto whole = fmt::format("all {}", accumulate), some = fmt::format("some {}", accumulate);
    run(whole, 0), run(some, 0.1);
    expect_same_bits(some, whole);
    EXPECT_GT(numbers(some, "runs_again").back(), 2) << "0.1, 0.2, 0.4, ...";
    EXPECT_TRUE(numbers(whole, "runs_again").empty());
  }
}

/// A checkpoint holds whole experts, whichever ranks had them, and any other mesh continues from it.
TEST_F(Experts, a_stopped_run_goes_on_on_any_mesh) {
  const auto plain = [](RunConfig& c) { c.train.steps = 6, c.train.eval_every = 3; };
  run_mixture({}, "one", plain);
  const MeshShape divided{.dp = 2, .ep = 2};
  for (const auto& other : {MeshShape{}, {.dp = 2}, {.dp = 4, .ep = 2}, {.dp = 2, .tp = 2, .ep = 2}}) {
    const auto name = fmt::format("{}{}{}", other.dp, other.tp, other.ep);
    for (const auto& [from, to, run] : {std::tuple{divided, other, "from" + name}, {other, divided, "to" + name}}) {
      EXPECT_TRUE(run_mixture(from, run, plain, 3).stopped);
      EXPECT_EQ(run_mixture(to, run, plain).first_step, 3);
      EXPECT_NEAR(numbers(run, "loss").back(), numbers("one", "loss").back(), 1e-5 * numbers("one", "loss").back());
    }
  }
}

/// Folders of other programs hold one matrix for each expert.
TEST_F(Experts, a_run_starts_from_a_model_folder) {
  run_mixture({}, "base", [](RunConfig& c) { c.train.steps = 2; });
  const auto from_base = [&](RunConfig& c) {
    c.model = {}, c.init = (tmp.path() / "base" / "model").string(), c.train.steps = 6;
  };
  expect_like_one_rank("tuned", {{.dp = 2, .ep = 2}}, from_base);
}

TEST_F(Experts, numbers_that_do_not_divide_are_refused_with_what_would_fit) {
  const auto refusal = [&](const MeshShape& mesh, const Change& change) {
    return error_of([&] { run_mixture(mesh, "refused", change); });
  };
  EXPECT_NE(refusal({.dp = 4, .ep = 3}, [](RunConfig&) {})
                .find("parallel.ep = 3 does not divide the 4 ranks of dp 4 x cp 1, which divide the experts: ep may be "
                      "1, 2, 4"),
            std::string::npos);
  EXPECT_NE(refusal({.dp = 4, .ep = 4}, [](RunConfig& c) { c.model.experts = 6; })
                .find("parallel.ep = 4 does not divide the 6 experts of a layer: ep may be 1, 2, 3, 6"),
            std::string::npos);
}

}  // namespace
}  // namespace hpcdl::train

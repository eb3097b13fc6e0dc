// Training on ranks that have different layers, which are threads here: every schedule gives the bits of one rank.

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/io/json.h"
#include "hpcdl/testing/mesh_runs.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/runs_for_tests.h"
#include "hpcdl/train/train_for_tests.h"

namespace hpcdl::train {
namespace {

namespace fs = std::filesystem;
using Change = std::function<void(RunConfig&)>;

struct Pipeline : ::testing::Test {
  Pipeline() {
    RunConfig c;
    toy_config(c, tmp, "unused");  // prepares the text once for all
  }

  /// A model of six layers, its embedding and its head included, into tmp/NAME.
  void config(RunConfig& c, const std::string& name) {
    toy_config(c, tmp, name);
    c.model.layers = 4, c.model.heads = 4, c.model.tied = false;
    c.train.steps = 20, c.train.eval_every = 10, c.train.batch = 2, c.train.accumulate = 4, c.train.threads = 1;
    c.parallel.dp = 1;
  }

  RunSummary train_on(int ranks, const std::string& name, const Change& change, std::int64_t stop_at = -1) {
    const auto configure = [&](RunConfig& c) { config(c, name), change(c); };
    return testing::run_on_ranks(ranks, configure, stop_at);
  }

  std::string error_of_pipeline(int ranks, const Change& change) {
    const auto errors = testing::rank_errors(ranks, [&](const comm::Group& world) {
      RunConfig c;
      config(c, "refused");
      change(c);
      Hooks hooks;
      hooks.world = world;
      run(c, hooks);
    });
    return errors.front();
  }

  void expect_same(const std::string& got, const std::string& want) const {
    EXPECT_EQ(weights_apart(tmp.path() / got / "model", tmp.path() / want / "model"), 0) << got;
    EXPECT_EQ(timeless_metrics(tmp.path() / got), timeless_metrics(tmp.path() / want)) << got;
  }

  std::vector<double> numbers(const std::string& name) const {
    std::istringstream in(io::read_file(tmp.path() / name / "metrics.jsonl"));
    std::vector<double> list;
    for (std::string line; std::getline(in, line);)
      for (const char* key : {"loss", "grad_norm", "eval_loss"})
        if (const auto j = io::parse_json(line, "metrics.jsonl"); j.contains(key))
          list.push_back(j.at(key).get<double>());
    return list;
  }

  void expect_near(const std::string& got, const std::string& want) const {
    const auto g = numbers(got), w = numbers(want);
    ASSERT_EQ(g.size(), w.size()) << got;
    for (std::size_t i = 0; i < g.size(); ++i) EXPECT_NEAR(g[i], w[i], 1e-5 * std::fabs(w[i])) << got << ' ' << i;
    EXPECT_LT(weights_apart(tmp.path() / got / "model", tmp.path() / want / "model"), 1e-5) << got;
  }

  io::TempFolder tmp;
};

struct Shape {
  const char* schedule;
  int pp, chunks, micros;
  std::string name() const { return fmt::format("{}-{}x{}-{}", schedule, pp, chunks, micros); }
  void set(RunConfig& c) const {
    c.parallel.pp = pp, c.parallel.chunks = chunks, c.parallel.schedule = schedule, c.train.accumulate = micros;
  }
};

TEST_F(Pipeline, every_schedule_gives_the_bits_of_one_rank) {
  const std::vector<Shape> shapes = {{"gpipe", 2, 1, 4},       {"gpipe", 2, 3, 2},       {"1f1b", 2, 1, 4},
                                     {"1f1b", 4, 1, 4},        {"1f1b", 3, 1, 2},        {"interleaved", 2, 2, 4},
                                     {"interleaved", 3, 2, 4}, {"zero_bubble", 2, 1, 4}, {"zero_bubble", 3, 1, 2},
                                     {"zero_bubble", 4, 1, 4}, {"zbv", 2, 2, 4},         {"zbv", 3, 2, 2}};
  for (const auto family : {io::Family::gpt2, io::Family::llama}) {
    const auto of = [&](RunConfig& c) { c.model.family = family; };
    const auto prefix = std::string(io::enum_name(family));
    for (const int micros : {2, 4})
      train_on(1, prefix + "-one-" + std::to_string(micros), [&](RunConfig& c) { of(c), c.train.accumulate = micros; });
    for (const auto& shape : shapes) {
      const auto name = prefix + "-" + shape.name();
      train_on(shape.pp, name, [&](RunConfig& c) { of(c), shape.set(c); });
      expect_same(name, prefix + "-one-" + std::to_string(shape.micros));
    }
  }
}

TEST_F(Pipeline, composes_with_data_and_tensor_parallelism) {
  const auto two_rows = [](RunConfig& c) { c.train.batch = 4, c.train.accumulate = 4; };
  train_on(1, "one", two_rows);
  const Shape shape{"zero_bubble", 2, 1, 4};
  for (const auto& [dp, tp] : {std::pair{2, 1}, {1, 2}, {2, 2}}) {
    const auto name = fmt::format("{}x{}", dp, tp);
    train_on(2 * dp * tp, name, [&, dp = dp, tp = tp](RunConfig& c) {
      shape.set(c);
      c.train.batch = 4 / dp, c.parallel.dp = dp, c.parallel.tp = tp;
    });
    expect_near(name, "one");
  }
}

TEST_F(Pipeline, dropout_and_recomputation_keep_the_bits) {
  const auto both = [](RunConfig& c) { c.train.dropout = 0.1, c.train.recompute = true; };
  train_on(1, "one", both);
  for (const Shape& shape : {Shape{"zero_bubble", 2, 1, 4}, {"interleaved", 2, 2, 4}}) {
    train_on(2, shape.name(), [&](RunConfig& c) { both(c), shape.set(c); });
    expect_same(shape.name(), "one");
  }
}

TEST_F(Pipeline, mixed_precision_keeps_the_bits) {
  for (const auto dtype : {Compute::bf16, Compute::fp16}) {
    const auto mixed = [&](RunConfig& c) { c.train.dtype = dtype; };
    const auto name = std::string(io::enum_name(dtype));
    train_on(1, name, mixed);
    train_on(2, name + "-two", [&](RunConfig& c) { mixed(c), Shape{"zero_bubble", 2, 1, 4}.set(c); });
    expect_same(name + "-two", name);
  }
}

/// The first and the last stage have the same table, and add up its gradient in another order than one rank.
TEST_F(Pipeline, stages_share_an_embedding) {
  // Gradients that consist only of rounding errors must not become full steps.
  const auto tied = [](RunConfig& c) { c.model.tied = true, c.train.eps = 1e-5; };
  train_on(1, "one", tied);
  for (const Shape& shape : {Shape{"1f1b", 2, 1, 4}, {"zero_bubble", 3, 1, 4}, {"zbv", 2, 2, 4}}) {
    train_on(shape.pp, shape.name(), [&](RunConfig& c) { tied(c), shape.set(c); });
    expect_near(shape.name(), "one");
  }
  train_on(4, "replicas", [&](RunConfig& c) {
    tied(c), Shape{"interleaved", 2, 2, 4}.set(c);
    c.train.batch = 1, c.parallel.dp = 2;
  });
  expect_near("replicas", "one");
}

TEST_F(Pipeline, a_stopped_run_goes_on_on_any_mesh) {
  const Shape two{"1f1b", 2, 1, 4}, three{"zbv", 3, 2, 4};
  const auto on = [](const Shape& s) { return [&](RunConfig& c) { s.set(c); }; };
  const Change alone = [](RunConfig&) {};
  train_on(1, "one", alone);
  EXPECT_TRUE(train_on(2, "a", on(two), 7).stopped);
  EXPECT_EQ(train_on(3, "a", on(three)).first_step, 7);
  expect_same("a", "one");
  EXPECT_TRUE(train_on(1, "b", alone, 7).stopped);
  EXPECT_EQ(train_on(2, "b", on(two)).first_step, 7);
  expect_same("b", "one");
  EXPECT_TRUE(train_on(3, "c", on(three), 7).stopped);
  EXPECT_EQ(train_on(1, "c", alone).first_step, 7);
  expect_same("c", "one");
}

TEST_F(Pipeline, layers_can_be_chosen) {
  train_on(1, "one", [](RunConfig&) {});
  train_on(2, "chosen", [](RunConfig& c) { c.parallel.pp = 2, c.parallel.layers = {5, 1}; });
  expect_same("chosen", "one");
}

TEST_F(Pipeline, says_what_would_fit) {
  const auto expect = [&](int ranks, const char* part, const Change& change) {
    const auto error = error_of_pipeline(ranks, change);
    EXPECT_NE(error.find(part), std::string::npos) << error << "\nexpected: " << part;
  };
  expect(2, "makes 8 stages, but the model has 6 layers",
         [](RunConfig& c) { c.parallel.pp = 2, c.parallel.schedule = "interleaved", c.parallel.chunks = 4; });
  expect(2, "for example [3, 3]", [](RunConfig& c) { c.parallel.pp = 2, c.parallel.layers = {2, 2}; });
  expect(2, "needs parallel.chunks = 2 or more, got 1",
         [](RunConfig& c) { c.parallel.pp = 2, c.parallel.schedule = "interleaved"; });
  expect(2, "did you mean", [](RunConfig& c) { c.parallel.pp = 2, c.parallel.schedule = "1f1c"; });
  expect(2, "keeps stages in host memory",
         [](RunConfig& c) { c.parallel.pp = 2, c.parallel.schedule = "round_robin"; });
  expect(2, "parallel.zero = 1", [](RunConfig& c) { c.parallel.pp = 2, c.parallel.zero = 1; });
  expect(2, "offload.optimizer", [](RunConfig& c) { c.parallel.pp = 2, c.offload.optimizer = Tier::host; });
  expect(2, "fp8-emu", [](RunConfig& c) { c.parallel.pp = 2, c.train.dtype = Compute::fp8_emu; });
  expect(4, "exclude each other", [](RunConfig& c) { c.parallel.pp = c.parallel.cp = 2; });
  expect(2, "mixtures are trained without",
         [](RunConfig& c) { c.parallel.pp = 2, c.model.family = io::Family::mixtral, c.model.experts = 4; });
  expect(1, "parallel.chunks = 2 is for pipelines", [](RunConfig& c) { c.parallel.chunks = 2; });
  expect(1, "start them with `hpcdl launch -n 2", [](RunConfig& c) { c.parallel.pp = 2; });
}

/// Numbers that are not finite end a run of many ranks like one of a single rank.
TEST_F(Pipeline, a_step_that_is_not_finite_ends_the_run) {
  const auto error = error_of_pipeline(
      2, [](RunConfig& c) { c.parallel.pp = 2, c.train.lr = 1e30, c.train.warmup = 0, c.train.clip = 0; });
  EXPECT_NE(error.find("is not finite; the first bad tensor is"), std::string::npos) << error;
}

/// Fails in the middle of a step.
struct Fails : Observer {
  int programs = 0;
  void run(const Instance& exe, Stream& s) override {
    if (++programs == 9) fail("test", "a fault");
    exe.run(s);
  }
};

/// The others do not wait for it until their deadline.
TEST_F(Pipeline, a_rank_that_fails_in_a_step_ends_the_others) {
  const auto errors = testing::rank_errors(3, [&](const comm::Group& world) {
    RunConfig c;
    config(c, "fails");
    c.parallel.pp = 3, c.train.eval_every = 0;
    Fails fault;
    Hooks hooks;
    hooks.world = world;
    if (world.rank() == 1) hooks.observer = &fault;
    run(c, hooks);
  });
  EXPECT_NE(errors[1].find("a fault"), std::string::npos) << errors[1];
  for (const int other : {0, 2})
    EXPECT_NE(errors[static_cast<std::size_t>(other)].find("rank 1"), std::string::npos)
        << errors[static_cast<std::size_t>(other)];
}

}  // namespace
}  // namespace hpcdl::train

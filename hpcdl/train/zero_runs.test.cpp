// Runs whose ranks divide the state of the training: checkpoints for any number of ranks, stops, and numbers that are
// not finite. The ranks are threads.

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hpcdl/models/family.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/testing/mesh_runs.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/memory_plan.h"
#include "hpcdl/train/plan_run.h"
#include "hpcdl/train/runs_for_tests.h"
#include "hpcdl/train/train_for_tests.h"

namespace hpcdl::train {
namespace {

using Change = std::function<void(RunConfig&)>;

struct Zero : ::testing::Test {
  Zero() {
    RunConfig c;
    toy_config(c, tmp, "unused");  // prepares the text once for all
  }

  /// A run of n ranks into tmp/NAME, with a batch of 12 over all; returns the result of rank 0.
  RunSummary train_on(int n, int zero, const std::string& name, const Change& change = {}, std::int64_t stop_at = -1,
                      const std::vector<int>& hosts = {}) {
    const auto configure = [&](RunConfig& c) {
      toy_config(c, tmp, name);
      c.train.batch = 12 / n, c.train.threads = 1, c.parallel.zero = zero;
      if (change) change(c);
    };
    return testing::run_on_ranks(n, configure, stop_at, hosts);
  }
  void expect_same_model(const std::string& a, const std::string& b) {
    expect_same_file(tmp.path() / a / "model/model.safetensors", tmp.path() / b / "model/model.safetensors");
  }
  io::TempFolder tmp;
};

TEST_F(Zero, runs_have_the_same_metrics_and_files) {
  for (const int n : {3, 4}) {
    const auto name = [&](int zero) { return std::to_string(n) + "." + std::to_string(zero); };
    // The batches of an evaluation do not divide by the ranks.
    const auto change = [](RunConfig& c) { c.train.accumulate = 2, c.train.eval_batches = 0; };
    for (const int zero : {0, 1, 2, 3}) train_on(n, zero, name(zero), change);
    for (const int zero : {1, 2, 3}) {
      expect_same_model(name(zero), name(0));
      EXPECT_EQ(timeless_metrics(tmp.path() / name(zero)), timeless_metrics(tmp.path() / name(0)));
    }
  }
}

/// A run that is stopped on one number of ranks with one stage goes on with others. The bits are those of a run that
/// changes its ranks at the same step and divides nothing.
TEST_F(Zero, checkpoints_are_for_any_number_of_ranks_and_any_stage) {
  struct Way {
    int from, to;
  };
  for (const auto& [from, to] : {Way{4, 2}, {2, 3}, {3, 1}, {1, 4}}) {
    const auto name = [&](const char* what) { return std::to_string(from) + std::to_string(to) + what; };
    const auto both = [&](const char* what, int before, int after) {
      EXPECT_TRUE(train_on(from, before, name(what), {}, 3).stopped);
      EXPECT_EQ(train_on(to, after, name(what)).first_step, 3);
    };
    both("whole", 0, 0);
    both("divided", 2, 1);
    both("from divided", 1, 0);
    both("to divided", 0, 2);
    both("from sharded", 3, 2);
    both("to sharded", 1, 3);
    for (const char* what : {"divided", "from divided", "to divided", "from sharded", "to sharded"})
      expect_same_model(name(what), name("whole"));
  }
}

/// The state of a run that each host holds whole, and of one that all ranks divide.
TEST_F(Zero, checkpoints_are_for_any_span) {
  const std::vector<int> hosts{0, 0, 1, 1};
  const Change of_hosts = [](RunConfig& c) { c.parallel.zero_span = ZeroSpan::host; };
  for (const int zero : {1, 3}) {
    const auto name = [&](const char* what) { return what + std::to_string(zero); };
    EXPECT_TRUE(train_on(4, zero, name("from"), of_hosts, 3, hosts).stopped);
    EXPECT_EQ(train_on(2, 4 - zero, name("from")).first_step, 3);
    EXPECT_TRUE(train_on(2, 4 - zero, name("to"), {}, 3).stopped);
    EXPECT_EQ(train_on(4, zero, name("to"), of_hosts, -1, hosts).first_step, 3);
    const auto line = io::read_file(tmp.path() / name("to") / "metrics.jsonl");
    EXPECT_NE(line.find("wire_bytes"), std::string::npos);
  }
  for (const char* what : {"from", "to"}) expect_same_model(what + std::string("1"), what + std::string("3"));
}

TEST_F(Zero, numbers_that_are_not_finite_end_all_ranks_with_a_reason) {
  for (const int zero : {1, 2, 3}) {
    const auto errors = testing::rank_errors(3, [&](const comm::Group& world) {
      RunConfig c;
      toy_config(c, tmp, "r" + std::to_string(zero));
      c.parallel.zero = zero;
      c.train.lr = 1e3, c.train.warmup = 0, c.train.weight_decay = 100, c.train.clip = 0, c.train.steps = 60;
      Hooks hooks;
      hooks.world = world;
      run(c, hooks);
    });
    for (const auto& e : errors) EXPECT_NE(e.find("not finite; the first bad tensor"), std::string::npos) << e;
  }
}

/// What the plan of a rank says of each stage, for a model of some size and eight ranks that need not be there.
TEST_F(Zero, the_plan_knows_what_a_rank_holds) {
  const auto ledger = [&](int zero, std::int64_t accumulate) {
    RunConfig c;
    c.model.family = io::Family::llama;
    c.model.layers = 4, c.model.heads = 4, c.model.width = 256, c.model.vocab = 1000, c.model.context = 16;
    models::resolve(c.model);
    c.parallel.zero = zero, c.train.batch = 1, c.train.accumulate = accumulate;
    auto options = step_options(c);
    options.data = comm::Group::described(3, 8, "dp");
    auto described = models::LanguageModel::create(c.model, {}, true);
    return plan_memory(described, options, accumulate, Device());
  };
  const auto none = ledger(0, 1), moments = ledger(1, 1), gradients = ledger(2, 1);
  const auto eighth = [](std::int64_t whole, std::int64_t part) {
    return 8.0 * static_cast<double>(part) / static_cast<double>(whole);
  };
  EXPECT_NEAR(eighth(none.optimizer, moments.optimizer), 1, 0.2);
  EXPECT_NEAR(eighth(none.gradients, moments.gradients), 8, 0.8) << "with the padding of units";
  EXPECT_EQ(gradients.optimizer, moments.optimizer);
  EXPECT_NEAR(eighth(none.gradients, gradients.gradients), 1, 0.2);
  EXPECT_EQ(none.weights, gradients.weights);
  EXPECT_GT(gradients.activations, none.activations) << "each gradient lives in the arena until it is summed";
  EXPECT_LT(gradients.tensors(), moments.tensors());
  EXPECT_LT(moments.tensors(), none.tensors());
  EXPECT_EQ(ledger(2, 4).gradients, ledger(1, 4).gradients) << "micro-batches add to whole gradients";
  const auto weights = ledger(3, 1);
  EXPECT_NEAR(eighth(none.weights, weights.weights), 1, 0.2);
  EXPECT_EQ(weights.gradients, gradients.gradients);
  EXPECT_EQ(weights.optimizer, gradients.optimizer);
  EXPECT_LT(weights.tensors(), gradients.tensors());
}

}  // namespace
}  // namespace hpcdl::train

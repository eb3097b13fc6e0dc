// Training on several ranks, which are threads here.

#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "hpcdl/io/json.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/runs_for_tests.h"
#include "hpcdl/train/train_for_tests.h"

namespace hpcdl::train {
namespace {

namespace fs = std::filesystem;
using comm::Group;

struct Case {
  std::int64_t batch = 8;  // over all ranks
  std::function<void(RunConfig&)> change = [](RunConfig&) {};
  Hooks hooks = {};
};

/// A run on n ranks into tmp/NAME; returns the result of rank 0.
RunSummary train_on(int n, const io::TempFolder& tmp, const std::string& name, const Case& s = {}) {
  std::vector<RunSummary> all(static_cast<std::size_t>(n));
  testing::run_ranks(n, [&](const Group& world) {
    RunConfig c;
    toy_config(c, tmp, name);
    c.train.batch = s.batch / n;
    c.train.threads = 1;
    s.change(c);
    auto hooks = s.hooks;
    hooks.world = world;
    if (world.rank() != n - 1) hooks.after_step = {};
    all[static_cast<std::size_t>(world.rank())] = run(c, hooks);
  });
  for (const auto& r : all) {
    EXPECT_EQ(r.step, all[0].step);
    EXPECT_EQ(r.stopped, all[0].stopped);
    EXPECT_EQ(r.loss, all[0].loss) << "every rank must know the total loss";
    EXPECT_TRUE(r.eval_loss == all[0].eval_loss || std::isnan(r.eval_loss));
    EXPECT_EQ(r.tokens_per_second > 0, all[0].tokens_per_second > 0);
  }
  return all[0];
}

/// The text once for all tests, so that they do not race to write it.
struct Ranks : ::testing::Test {
  Ranks() {
    RunConfig c;
    toy_config(c, tmp, "unused");
  }
  io::TempFolder tmp;
};

std::vector<double> numbers(const fs::path& run, const char* key) {
  std::istringstream in(io::read_file(run / "metrics.jsonl"));
  std::vector<double> list;
  for (std::string line; std::getline(in, line);)
    if (const auto j = io::parse_json(line, "metrics.jsonl"); j.contains(key)) list.push_back(j.at(key).get<double>());
  return list;
}

void expect_same_model(const fs::path& a, const fs::path& b) {
  EXPECT_TRUE(io::read_file(a / "model/model.safetensors") == io::read_file(b / "model/model.safetensors"))
      << a << " and " << b;
}

/// Loss, gradient norm, evaluation and weights of n ranks equal those of one, after 50 steps.
TEST_F(Ranks, any_number_of_them_trains_what_one_rank_trains) {
  Case s;
  s.change = [](RunConfig& c) { c.train.steps = 50, c.train.eval_every = 25, c.train.dropout = 0.1; };
  train_on(1, tmp, "one", s);
  for (const int n : {2, 4, 8}) {
    const auto name = std::to_string(n);
    train_on(n, tmp, name, s);
    for (const char* key : {"loss", "grad_norm", "eval_loss", "tokens"}) {
      const auto want = numbers(tmp / "one", key), got = numbers(tmp / name, key);
      ASSERT_EQ(got.size(), want.size()) << key;
      for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_NEAR(got[i], want[i], 1e-5 * std::fabs(want[i])) << n << " ranks, " << key << " " << i;
    }
    EXPECT_LT(weights_apart(tmp / "one/model", tmp / name / "model"), 1e-5) << n;
  }
}

TEST_F(Ranks, micro_batches_are_exchanged_once_and_weigh_alike) {
  Case s;
  s.change = [](RunConfig& c) { c.train.accumulate = 3, c.train.dropout = 0.1, c.train.steps = 12; };
  train_on(1, tmp, "one", s);
  train_on(2, tmp, "two", s);
  EXPECT_LT(weights_apart(tmp / "one/model", tmp / "two" / "model"), 1e-5);
}

/// Four ranks, each with the batch of one and the learning rate chosen for one, act like one rank with four times the
/// batch and rate.
TEST_F(Ranks, the_learning_rate_follows_the_number_of_ranks) {
  for (const auto& [scaling, factor] : {std::pair(LrScaling::linear, 4.0), std::pair(LrScaling::sqrt, 2.0)}) {
    Case by_hand, scaled;
    by_hand.change = [factor = factor](RunConfig& c) { c.train.lr = 1e-3 * factor, c.train.min_lr = 1e-4 * factor; };
    scaled.change = [scaling = scaling](RunConfig& c) {
      c.train.lr = 1e-3, c.train.min_lr = 1e-4, c.train.lr_scaling = scaling;
    };
    const auto name = std::to_string(static_cast<int>(factor));
    train_on(1, tmp, "one" + name, by_hand);
    train_on(4, tmp, "four" + name, scaled);
    const auto want = numbers(tmp / ("one" + name), "lr"), got = numbers(tmp / ("four" + name), "lr");
    ASSERT_EQ(got, want);
    EXPECT_DOUBLE_EQ(got[0], 1e-3 * factor / 2) << "the first of two warm-up steps";
    EXPECT_LT(weights_apart(tmp / ("one" + name) / "model", tmp / ("four" + name) / "model"), 1e-5);
  }
}

TEST_F(Ranks, buckets_and_overlap_change_no_bit) {
  for (const int n : {2, 3, 4}) {
    Case s;
    s.batch = 12;
    const auto run_with = [&](const std::string& name, double mb, double first, bool overlap) {
      s.change = [=](RunConfig& c) {
        c.parallel.bucket_mb = mb, c.parallel.first_bucket_mb = first, c.parallel.overlap = overlap,
        c.train.accumulate = 2;
      };
      train_on(n, tmp, name + std::to_string(n), s);
    };
    run_with("default", 25, 1, true);
    run_with("small", 0.02, 0.005, true);
    run_with("blocking", 0, 0, false);
    for (const char* other : {"small", "blocking"})
      expect_same_model(tmp / ("default" + std::to_string(n)), tmp / (other + std::to_string(n)));
  }
}

/// A signal to one rank stops all at the same step; the same number of ranks continues with the same bits, and another
/// number with the same values.
TEST_F(Ranks, a_stopped_run_goes_on_on_any_number_of_ranks) {
  Case s;
  train_on(4, tmp, "whole", s);
  Case stopping;
  stopping.hooks.after_step = [](std::int64_t step) {
    if (step == 3) ::raise(SIGTERM);
  };
  for (const int n : {4, 2, 1}) {
    const auto name = "stopped" + std::to_string(n);
    const auto stopped = train_on(4, tmp, name, stopping);
    EXPECT_TRUE(stopped.stopped);
    EXPECT_EQ(stopped.step, 3);
    EXPECT_FALSE(fs::exists(tmp.path() / name / "model"));
    const auto resumed = train_on(n, tmp, name, s);
    EXPECT_EQ(resumed.first_step, 3);
    if (n == 4) expect_same_model(tmp / "whole", tmp / name);
    else EXPECT_LT(weights_apart(tmp / "whole/model", tmp / name / "model"), 1e-5) << n;
  }
}

TEST_F(Ranks, only_the_first_speaks) {
  std::atomic<int> lines = 0;
  Case s;
  s.hooks.console.line = [&](std::string_view) { ++lines; };
  train_on(1, tmp, "one", s);
  const int alone = lines.exchange(0);
  train_on(4, tmp, "four", s);
  EXPECT_EQ(lines, alone);
}

TEST_F(Ranks, a_mesh_that_is_not_the_world_is_refused) {
  const auto errors = testing::rank_errors(4, [&](const Group& world) {
    RunConfig c;
    toy_config(c, tmp, "r");
    c.parallel.dp = 3;
    Hooks hooks;
    hooks.world = world;
    run(c, hooks);
  });
  for (const auto& e : errors) EXPECT_NE(e.find("4 ranks"), std::string::npos) << e;
}

TEST_F(Ranks, a_loss_that_is_no_number_ends_all_ranks_with_a_reason) {
  const auto errors = testing::rank_errors(3, [&](const Group& world) {
    RunConfig c;
    toy_config(c, tmp, "r");
    c.train.lr = 1e3, c.train.warmup = 0, c.train.weight_decay = 100, c.train.clip = 0, c.train.steps = 60;
    Hooks hooks;
    hooks.world = world;
    run(c, hooks);
  });
  for (const auto& e : errors) EXPECT_NE(e.find("not finite; the first bad tensor"), std::string::npos) << e;
}

}  // namespace
}  // namespace hpcdl::train

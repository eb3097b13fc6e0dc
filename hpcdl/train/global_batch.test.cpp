// The size of a step on any number of ranks, which are threads here.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "hpcdl/io/safetensors.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/check_config.h"
#include "hpcdl/train/runs_for_tests.h"
#include "hpcdl/train/train_for_tests.h"

namespace hpcdl::train {
namespace {

using Change = std::function<void(RunConfig&)>;

struct GlobalBatch : ::testing::Test {
  GlobalBatch() {
    RunConfig c;
    toy_config(c, tmp, "unused");  // prepares the text once for all
  }

  /// A run of n ranks into tmp/NAME; returns the output of rank 0.
  std::string train_on(int n, const std::string& name, const Change& change) {
    std::string said;
    testing::run_ranks(n, [&](const comm::Group& world) {
      RunConfig c;
      toy_config(c, tmp, name);
      c.train.batch = TrainConfig().batch, c.train.threads = 1;
      change(c);
      Hooks hooks;
      hooks.world = world;
      if (world.rank() == 0) hooks.console.line = [&](std::string_view line) { said += std::string(line) + "\n"; };
      run(c, hooks);
    });
    return said;
  }
  double weights_apart(const std::string& a, const std::string& b) const {
    const auto one = io::TensorFolder::open(tmp.path() / a / "model"),
               two = io::TensorFolder::open(tmp.path() / b / "model");
    double worst = 0;
    for (const auto& t : one.tensors())
      for (std::int64_t i = 0; i < one.at(t.name).size(); ++i)
        worst =
            std::max(worst, std::fabs(double{one.at(t.name).ptr<float>()[i]} - double{two.at(t.name).ptr<float>()[i]}));
    return worst;
  }
  io::TempFolder tmp;
};

TEST_F(GlobalBatch, steps_are_as_large_on_any_number_of_ranks) {
  train_on(2, "by_hand", [](RunConfig& c) { c.train.batch = 2, c.train.accumulate = 2; });
  train_on(2, "two", [](RunConfig& c) { c.train.global_batch = 8, c.train.accumulate = 2; });
  expect_same_file(tmp / "by_hand/model/model.safetensors", tmp / "two/model/model.safetensors");
  train_on(4, "four", [](RunConfig& c) { c.train.global_batch = 8; });
  EXPECT_LT(weights_apart("two", "four"), 1e-5);
}

TEST_F(GlobalBatch, a_run_goes_on_with_them_on_fewer_ranks) {
  const Change first_half = [](RunConfig& c) {
    c.train.global_batch = 8, c.train.steps = 3, c.train.schedule = ScheduleKind::constant;
  };
  const Change all = [](RunConfig& c) { c.train.global_batch = 8, c.train.schedule = ScheduleKind::constant; };
  train_on(4, "at_once", all);
  train_on(4, "later", first_half);
  const auto said = train_on(2, "later", all);
  EXPECT_NE(said.find("resumed at step 3"), std::string::npos) << said;
  EXPECT_EQ(said.find("warning"), std::string::npos) << said;
  EXPECT_LT(weights_apart("at_once", "later"), 1e-5);
  EXPECT_NE(io::read_file(tmp / "later/config.toml").find("global_batch = 8"), std::string::npos);
}

TEST_F(GlobalBatch, smaller_steps_are_reported_in_one_line) {
  train_on(4, "run", [](RunConfig& c) { c.train.batch = 2, c.train.steps = 2; });
  const auto same = train_on(4, "run", [](RunConfig& c) { c.train.batch = 2, c.train.steps = 3; });
  EXPECT_EQ(same.find("a step now takes"), std::string::npos) << same;
  const auto fewer = train_on(2, "run", [](RunConfig& c) { c.train.batch = 2, c.train.steps = 4; });
  EXPECT_NE(fewer.find("a step now takes 4 samples, but took 8 before this checkpoint"), std::string::npos) << fewer;
  EXPECT_NE(fewer.find("train.global_batch = 8 keeps the size"), std::string::npos) << fewer;
}

TEST_F(GlobalBatch, batches_that_do_not_divide_or_are_given_twice_are_refused) {
  const auto refused = [](std::int64_t global, std::int64_t batch, int world) {
    RunConfig c;
    c.train.global_batch = global, c.train.batch = batch;
    return error_of([&] { share_global_batch(c, world); });
  };
  EXPECT_NE(
      refused(10, TrainConfig().batch, 4).find("train.global_batch = 10 is not divisible by 4 data-parallel ranks"),
      std::string::npos);
  EXPECT_NE(refused(16, 2, 4).find("train.batch = 2 and train.global_batch = 16 exclude each other"),
            std::string::npos);
  EXPECT_EQ(refused(16, 4, 4), "no error") << "the two settings are consistent";
  EXPECT_EQ(refused(16, TrainConfig().batch, 4), "no error");
}

}  // namespace
}  // namespace hpcdl::train

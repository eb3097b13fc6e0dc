#pragma once
// Runs of pipelines for tests, and comparisons of what they wrote.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "hpcdl/io/json.h"
#include "hpcdl/testing/mesh_runs.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/runs_for_tests.h"
#include "hpcdl/train/train_for_tests.h"

namespace hpcdl::testing {

using Change = std::function<void(train::RunConfig&)>;

/// Runs of pipelines on ranks that are threads.
struct Pipeline : ::testing::Test {
  Pipeline() {
    train::RunConfig c;
    toy_config(c, tmp, "unused");  // prepares the text once for all
  }

  /// A model of six layers, its embedding and its head included, into tmp/NAME.
  virtual void config(train::RunConfig& c, const std::string& name) {
    toy_config(c, tmp, name);
    c.model.layers = 4, c.model.heads = 4, c.model.tied = false;
    c.train.steps = 20, c.train.eval_every = 10, c.train.batch = 2, c.train.accumulate = 4, c.train.threads = 1;
    c.parallel.dp = 1;
  }

  /// What a run has trained: a file, or a folder of files.
  virtual std::filesystem::path weights_of(const std::string& name) const { return tmp.path() / name / "model"; }

  train::RunSummary train_on(int ranks, const std::string& name, const Change& change, std::int64_t stop_at = -1) {
    const auto configure = [&](train::RunConfig& c) { config(c, name), change(c); };
    return run_on_ranks(ranks, configure, stop_at);
  }

  std::string error_of_pipeline(int ranks, const Change& change) {
    const auto errors = rank_errors(ranks, [&](const comm::Group& world) {
      train::RunConfig c;
      config(c, "refused");
      change(c);
      train::Hooks hooks;
      hooks.world = world;
      run(c, hooks);
    });
    return errors.front();
  }

  void expect_same(const std::string& got, const std::string& want) const {
    EXPECT_EQ(train::weights_apart(weights_of(got), weights_of(want)), 0) << got;
    EXPECT_EQ(train::timeless_metrics(tmp.path() / got), train::timeless_metrics(tmp.path() / want)) << got;
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
    EXPECT_LT(train::weights_apart(weights_of(got), weights_of(want)), 1e-5) << got;
  }

  io::TempFolder tmp;
};

/// The schedule of a pipeline and its shape.
struct Shape {
  const char* schedule;
  int pp, chunks, micros;
  std::string name() const { return fmt::format("{}-{}x{}-{}", schedule, pp, chunks, micros); }
  void set(train::RunConfig& c) const {
    c.parallel.pp = pp, c.parallel.chunks = chunks, c.parallel.schedule = schedule, c.train.accumulate = micros;
  }
};

}  // namespace hpcdl::testing

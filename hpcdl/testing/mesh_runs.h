#pragma once
// Runs on a mesh of ranks that are threads, and comparisons of what they wrote.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "hpcdl/io/json.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/train_for_tests.h"

namespace hpcdl::testing {

/// A run of ranks, which are threads, on these hosts (none: one host); returns the result of rank 0. On GPUs ("cuda")
/// each rank has its own. stop_at: the step after which it is asked to stop.
inline train::RunSummary run_on_ranks(int ranks, const std::function<void(train::RunConfig&)>& configure,
                                      std::int64_t stop_at = -1, const std::vector<int>& hosts = {}) {
  train::RunSummary first;
  run_ranks(ranks,
            [&](const comm::Group& world) {
              train::RunConfig c;
              configure(c);
              if (c.train.device == "cuda") c.train.device = fmt::format("cuda:{}", world.rank());
              train::Hooks hooks;
              hooks.world = world;
              if (world.rank() == 0 && stop_at >= 0)
                hooks.after_step = [&](std::int64_t step) {
                  if (step == stop_at) ::raise(SIGTERM);
                };
              const auto summary = run(c, hooks);
              if (world.rank() == 0) first = summary;
            },
            {.hosts = hosts, .on_lost = {}});
  return first;
}

struct MeshRuns : ::testing::Test {
  MeshRuns() {
    train::RunConfig c;
    toy_config(c, tmp, "unused");  // prepares the text once for all
  }

  /// A run of the ranks of a mesh into tmp/NAME; returns the result of rank 0. stop_at: the step after which it is asked
  /// to stop.
  train::RunSummary run_on(const parallel::MeshShape& mesh, const std::string& name,
                           const std::function<void(train::RunConfig&)>& change, std::int64_t stop_at = -1) {
    const auto configure = [&](train::RunConfig& c) {
      toy_config(c, tmp, name);
      c.model.heads = 4;
      c.train.batch = 8 / mesh.dp, c.train.threads = 1;
      c.parallel.pp = mesh.pp, c.parallel.dp = mesh.dp, c.parallel.cp = mesh.cp, c.parallel.tp = mesh.tp,
      c.parallel.ep = mesh.ep;
      change(c);
    };
    return run_on_ranks(mesh.size(), configure, stop_at);
  }

  std::vector<double> numbers(const std::string& name, const char* key) const {
    std::istringstream in(io::read_file(tmp.path() / name / "metrics.jsonl"));
    std::vector<double> list;
    for (std::string line; std::getline(in, line);)
      if (const auto j = io::parse_json(line, "metrics.jsonl"); j.contains(key))
        list.push_back(j.at(key).get<double>());
    return list;
  }

  /// Compares losses, norms and weights of two runs.
  void expect_parity(const std::string& got, const std::string& want) {
    for (const char* key : {"loss", "grad_norm", "eval_loss", "tokens"}) {
      const auto g = numbers(got, key), w = numbers(want, key);
      ASSERT_EQ(g.size(), w.size()) << got << ' ' << key;
      for (std::size_t i = 0; i < g.size(); ++i)
        EXPECT_NEAR(g[i], w[i], 1e-5 * std::fabs(w[i])) << got << ' ' << key << ' ' << i;
    }
    const auto a = io::TensorFolder::open(tmp.path() / got / "model"),
               b = io::TensorFolder::open(tmp.path() / want / "model");
    ASSERT_EQ(a.tensors().size(), b.tensors().size());
    for (const auto& t : b.tensors()) {
      const View x = a.at(t.name), y = b.at(t.name);
      ASSERT_EQ(x.spec(), y.spec()) << t.name;
      double worst = 0;
      for (std::int64_t i = 0; i < x.size(); ++i)
        worst = std::max(worst, std::fabs(double{x.ptr<float>()[i]} - double{y.ptr<float>()[i]}));
      EXPECT_LT(worst, 1e-5) << got << ' ' << t.name;
    }
  }

  io::TempFolder tmp;
};

}  // namespace hpcdl::testing

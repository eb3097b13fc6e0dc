#pragma once
// Runs of a few steps on ranks that divide the state of a training, for tests.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/models/family.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/parallel/tensor.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {

/// What a rank has after some steps.
struct Learned {
  std::vector<std::string> values;  // bytes
  std::vector<double> numbers;      // losses and norms
  std::int64_t moments = 0;         // elements
  bool operator==(const Learned& o) const {
    const auto same = [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };
    return values == o.values && std::ranges::equal(numbers, o.numbers, same);
  }
};

inline std::string bytes_of(const Tensor& t) {
  return {static_cast<const char*>(t.data()), static_cast<std::size_t>(t.bytes())};
}

inline Learned learned(TrainStep& step, const models::Trainable& model, std::vector<double> numbers) {
  step.fetch();
  Learned l{{}, std::move(numbers), 0};
  step.with_whole_values([&] {
    for (const auto list : {model.parameters(), model.buffers()})
      for (const auto& e : list) l.values.push_back(bytes_of(e.host));
  });
  for (const auto& m : step.optimizer_state()) l.moments += m.tensor.size();
  return l;
}

using Change = std::function<void(StepOptions&)>;

/// Trains a small text model on dp ranks, which may each be tp ranks, on these hosts (none: one host).
inline std::vector<Learned> train_text(io::Family family, const parallel::MeshShape& shape, int zero, int steps,
                                       const Change& change = {}, const std::vector<int>& hosts = {}) {
  std::vector<Learned> all(static_cast<std::size_t>(shape.size()));
  testing::run_ranks(
      shape.size(),
      [&](const comm::Group& world) {
        const parallel::Mesh mesh(world, shape);
        io::ModelConfig config;
        config.family = family;
        config.layers = 2, config.heads = 2, config.width = 64, config.context = 16;
        config.vocab = 700;  // a table of several blocks of the norm
        config.tied = family == io::Family::gpt2;
        models::resolve(config);
        const auto sharing = shape.tp > 1 ? std::make_shared<parallel::TensorParallel>(mesh.tp()) : nullptr;
        auto model = models::LanguageModel::create(config, 3, true, sharing);
        Pool pool(1);
        StepOptions o{.batch = 2, .length = 16, .data = mesh.dp(), .zero = zero};
        if (change) change(o);
        TrainStep step(model, pool, o);
        std::vector<double> numbers;
        const auto rank = static_cast<std::uint32_t>(mesh.dp().rank());
        for (int i = 0; i < steps; ++i) {
          const int micros = o.accumulate ? 3 : 1;
          for (int m = 0; m < micros; ++m) {
            const auto seed = static_cast<std::uint32_t>(100 * i + 10 * m) + rank;
            step.accumulate(models::tiny_ids(seed), models::tiny_ids(seed + 5000), i, m, m + 1 == micros);
          }
          const auto r = step.update(1e-2, 32 * micros);
          numbers.insert(numbers.end(), {r.loss, r.grad_norm});
          if (i % 3 == 1) numbers.push_back(step.evaluate(models::tiny_ids(7), models::tiny_ids(8)).loss);
        }
        all[static_cast<std::size_t>(world.rank())] = learned(step, model, std::move(numbers));
      },
      {.hosts = hosts, .on_lost = {}});
  return all;
}

inline void expect_same(const std::vector<Learned>& got, const std::vector<Learned>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t r = 0; r < got.size(); ++r) EXPECT_TRUE(got[r] == want[r]) << what << ", rank " << r;
}

}  // namespace hpcdl::train

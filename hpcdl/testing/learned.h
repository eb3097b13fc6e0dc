#pragma once
// Steps of small models, and what they learn, bit by bit: to compare where state lies.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/core/element.h"
#include "hpcdl/io/checkpoint_files.h"
#include "hpcdl/models/image_model.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {

using Change = std::function<void(StepOptions&)>;

inline io::ModelConfig small_model(io::Family family) {
  io::ModelConfig config;
  config.family = family;
  config.layers = 2, config.heads = 2, config.width = 64, config.context = 16;
  config.vocab = 700;  // a table of several groups
  config.tied = family == io::Family::gpt2;
  models::resolve(config);
  return config;
}

inline std::string bytes_of(const Tensor& t) {
  return {static_cast<const char*>(t.data()), static_cast<std::size_t>(t.bytes())};
}

/// The bytes of values and moments, losses and norms.
struct Learned {
  std::vector<std::string> state;
  std::vector<std::string> numbers;
  bool operator==(const Learned&) const = default;
};

inline void note(Learned& l, const StepResult& r) {
  l.numbers.push_back(std::to_string(r.loss) + " " + std::to_string(r.grad_norm));
}

inline void note_state(Learned& l, TrainStep& step) {
  step.fetch();
  for (const auto& list : {step.weights(), step.optimizer_state()})
    for (const auto& t : list) l.state.push_back(t.name + bytes_of(t.tensor));
}

inline void take_steps(TrainStep& step, const StepOptions& o, int first, int end, Learned& l, std::uint32_t rank = 0) {
  for (int i = first; i < end; ++i) {
    const int micros = o.accumulate ? 3 : 1;
    for (int m = 0; m < micros; ++m) {
      const auto seed = static_cast<std::uint32_t>(100 * i + 10 * m) + rank;
      step.accumulate(models::tiny_ids(seed), models::tiny_ids(seed + 5000), i, m, m + 1 == micros);
    }
    note(l, step.update(1e-2, 32 * micros));
    if (i % 3 == 1) l.numbers.push_back(std::to_string(step.evaluate(models::tiny_ids(7), models::tiny_ids(8)).loss));
  }
}

inline Learned train_text(io::Family family, Device device, const Change& change, const Change& place = {},
                          int steps = 8) {
  auto model = models::LanguageModel::create(small_model(family), 3, true);
  Pool pool(2);
  StepOptions o{.batch = 2, .length = 16};
  if (change) change(o);
  if (place) place(o);
  TrainStep step(model, pool, o, device);
  Learned l;
  take_steps(step, o, 0, steps, l);
  note_state(l, step);
  return l;
}

inline const std::pair<const char*, Change> kKinds[] = {
    {"f32", {}},
    {"micro-batches", [](StepOptions& o) { o.accumulate = true; }},
    {"bf16 with copies", [](StepOptions& o) { o.forward.compute = DType::bf16, o.copies = true; }},
    {"bf16 without", [](StepOptions& o) { o.forward.compute = DType::bf16, o.copies = false; }},
    {"fp16, whose first steps are skipped",
     [](StepOptions& o) {
       o.forward.compute = DType::f16, o.copies = true;
       o.scaler = GradScaler::Options{.init_scale = 0x1p22f};
     }},
    {"clipping", [](StepOptions& o) { o.clip = 0.05f; }},
};

/// Of each of n ranks that share the batch.
inline std::vector<Learned> train_ranks(int n, int zero, const Change& place) {
  std::vector<Learned> all(static_cast<std::size_t>(n));
  testing::run_ranks(n, [&](const comm::Group& world) {
    auto model = models::LanguageModel::create(small_model(io::Family::gpt2), 3, true);
    Pool pool(1);
    StepOptions o{.batch = 2, .length = 16, .copies = true, .data = world, .zero = zero};
    o.forward.compute = DType::bf16;
    if (place) place(o);
    TrainStep step(model, pool, o);
    auto& l = all[static_cast<std::size_t>(world.rank())];
    take_steps(step, o, 0, 6, l, static_cast<std::uint32_t>(world.rank()));
    note_state(l, step);
  });
  return all;
}

inline Learned train_images(const Change& place) {
  models::ImageConfig c{.family = models::ImageFamily::resnet18, .classes = 10};
  c.width = 8;
  auto model = models::ImageModel::create(c, 1, true);
  Pool pool(2);
  StepOptions o{.batch = 2};
  if (place) place(o);
  TrainStep step(model, pool, o);
  Learned l;
  for (int i = 0; i < 3; ++i) {
    std::vector<OwnedTensor> memory;
    std::vector<View> batch;
    for (const auto& input : step.inputs()) {
      auto& t = memory.emplace_back(input.spec).tensor;
      const Rng rng{7, static_cast<std::uint64_t>(i)};
      for (std::int64_t k = 0; k < t.size(); ++k)
        if (t.dtype() == DType::i32) t.ptr<std::int32_t>()[k] = static_cast<std::int32_t>(k % 10);
        else set_element(t, k, rng.normal(static_cast<std::uint64_t>(k)));
      batch.push_back(t);
    }
    step.accumulate(batch, i, 0);
    note(l, step.update(1e-2, 2));
  }
  note_state(l, step);
  return l;
}

inline void put(const std::vector<io::NamedTensor>& to, const std::vector<io::NamedTensor>& from) {
  ASSERT_EQ(to.size(), from.size());
  for (std::size_t i = 0; i < to.size(); ++i)
    std::memcpy(to[i].tensor.data(), from[i].tensor.data(), static_cast<std::size_t>(to[i].tensor.bytes()));
}

}  // namespace hpcdl::train

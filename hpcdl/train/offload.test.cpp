// Moments in host memory change no bit of what a training learns, whoever updates which weights.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/core/element.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/checkpoint_files.h"
#include "hpcdl/models/image_model.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/program/bytes.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/devices.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {
namespace {

using Change = std::function<void(StepOptions&)>;

io::ModelConfig small_model(io::Family family) {
  io::ModelConfig config;
  config.family = family;
  config.layers = 2, config.heads = 2, config.width = 64, config.context = 16;
  config.vocab = 700;  // a table of several groups
  config.tied = family == io::Family::gpt2;
  models::resolve(config);
  return config;
}

/// Groups of one block of elements: the model has about 20.
void offload(StepOptions& o, int interleave) {
  o.optimizer_place = {.on_host = true, .interleave = interleave, .group = 8192};
}

std::string bytes_of(const Tensor& t) {
  return {static_cast<const char*>(t.data()), static_cast<std::size_t>(t.bytes())};
}

/// The bytes of values and moments, losses and norms.
struct Learned {
  std::vector<std::string> state;
  std::vector<std::string> numbers;
  bool operator==(const Learned&) const = default;
};

void note(Learned& l, const StepResult& r) {
  l.numbers.push_back(std::to_string(r.loss) + " " + std::to_string(r.grad_norm));
}

void note_state(Learned& l, TrainStep& step) {
  step.fetch();
  for (const auto& list : {step.weights(), step.optimizer_state()})
    for (const auto& t : list) l.state.push_back(t.name + bytes_of(t.tensor));
}

void take_steps(TrainStep& step, const StepOptions& o, int first, int end, Learned& l, std::uint32_t rank = 0) {
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

Learned train_text(io::Family family, Device device, const Change& change, const Change& place = {}, int steps = 8) {
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

const std::pair<const char*, Change> kKinds[] = {
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

TEST(offload, moments_on_the_host_change_no_bit) {
  for (const auto device : testing::devices())
    for (const auto family : {io::Family::gpt2, io::Family::llama})
      for (const auto& [what, change] : kKinds) {
        const auto want = train_text(family, device, change);
        for (const int k : {0, 1, 3})
          EXPECT_EQ(train_text(family, device, change, [k](StepOptions& o) { offload(o, k); }), want)
              << what << ", every " << k << "th group on " << (device.is_cuda() ? "a GPU" : "a CPU");
      }
}

/// The rates of a machine decide who updates what, and so no bit may depend on them.
TEST(offload, groups_of_any_size_and_measured_rates_change_no_bit) {
  for (const auto device : testing::devices()) {
    const auto want = train_text(io::Family::llama, device, kKinds[2].second);
    for (const std::int64_t group : {8192, 3 * 8192, 1 << 20})
      for (const auto interleave : {std::optional<int>(), std::optional<int>(3)})
        EXPECT_EQ(train_text(io::Family::llama, device, kKinds[2].second,
                             [&](StepOptions& o) {
                               o.optimizer_place = {.on_host = true, .interleave = interleave, .group = group};
                             }),
                  want)
            << group;
  }
}

/// With every stage of ZeRO, and more than one way to divide what a rank updates.
TEST(offload, ranks_that_divide_state_learn_the_same_bits) {
  const auto train = [&](int n, int zero, const Change& place) {
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
  };
  for (const int n : {2, 3})
    for (const int zero : {0, 1, 2, 3}) {
      const auto want = train(n, zero, {});
      for (const int k : {0, 3}) EXPECT_EQ(train(n, zero, [k](StepOptions& o) { offload(o, k); }), want) << n << zero;
    }
}

TEST(offload, images_learn_the_same_bits) {
  const auto train = [](const Change& place) {
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
  };
  const auto want = train({});
  for (const int k : {0, 4}) EXPECT_EQ(train([k](StepOptions& o) { offload(o, k); }), want) << k;
}

void put(const std::vector<io::NamedTensor>& to, const std::vector<io::NamedTensor>& from) {
  ASSERT_EQ(to.size(), from.size());
  for (std::size_t i = 0; i < to.size(); ++i)
    std::memcpy(to[i].tensor.data(), from[i].tensor.data(), static_cast<std::size_t>(to[i].tensor.bytes()));
}

/// State that was saved from one place goes on in another.
TEST(offload, checkpoints_fit_every_place) {
  for (const auto device : testing::devices()) {
    const auto want = train_text(io::Family::llama, device, kKinds[2].second, {}, 8);
    for (const bool from_host : {false, true}) {
      Learned l;
      Pool pool(2);
      StepOptions o{.batch = 2, .length = 16};
      kKinds[2].second(o);
      auto there = o;
      offload(from_host ? o : there, 3);
      auto before = models::LanguageModel::create(small_model(io::Family::llama), 3, true),
           after = models::LanguageModel::create(small_model(io::Family::llama), 4, true);
      TrainStep first(before, pool, o, device), second(after, pool, there, device);
      take_steps(first, o, 0, 4, l);
      first.fetch();
      put(second.weights(), first.weights()), put(second.optimizer_state(), first.optimizer_state());
      second.store();
      take_steps(second, there, 4, 8, l);
      note_state(l, second);
      EXPECT_EQ(l, want) << "from the " << (from_host ? "host" : "device");
    }
  }
}

TEST(offload, an_optimizer_that_cannot_is_refused) {
  auto model = models::LanguageModel::create(small_model(io::Family::gpt2), 3, true);
  Pool pool(1);
  StepOptions o{.batch = 2, .length = 16, .optimizer = Sgd::Args{}};
  offload(o, 0);
  EXPECT_THROW(TrainStep(model, pool, o), Error);
}

/// Programs with these records go through files.
TEST(offload, programs_survive_as_bytes) {
  auto model = models::LanguageModel::create(small_model(io::Family::gpt2), {}, true);
  Pool pool(1);
  Stream s(pool);
  StepOptions o{.batch = 2, .length = 16};
  offload(o, 2);
  const StepPrograms programs(model, o, s);
  const auto bytes = to_bytes(programs.update()->planned->program);
  EXPECT_EQ(to_bytes(program_of(bytes, "test")), bytes);
}

}  // namespace
}  // namespace hpcdl::train

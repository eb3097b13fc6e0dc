// Moments in host memory change no bit of what a training learns, whoever updates which weights.

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>

#include "hpcdl/core/error.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/program/bytes.h"
#include "hpcdl/testing/devices.h"
#include "hpcdl/testing/learned.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {
namespace {

/// Groups of one block of elements: the model has about 20.
void offload(StepOptions& o, int interleave) {
  o.optimizer_place = {.on_host = true, .interleave = interleave, .group = 8192};
}

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
  for (const int n : {2, 3})
    for (const int zero : {0, 1, 2, 3}) {
      const auto want = train_ranks(n, zero, {});
      for (const int k : {0, 3})
        EXPECT_EQ(train_ranks(n, zero, [k](StepOptions& o) { offload(o, k); }), want) << n << zero;
    }
}

TEST(offload, images_learn_the_same_bits) {
  const auto want = train_images({});
  for (const int k : {0, 4}) EXPECT_EQ(train_images([k](StepOptions& o) { offload(o, k); }), want) << k;
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

/// Wherever a tensor waits, and whatever else moves.
TEST(offload, activations_on_the_host_change_no_bit) {
  const auto moving = [](double share) {
    return [share](StepOptions& o) { o.activations = {.on_host = true, .share = share, .smallest = 1}; };
  };
  for (const auto device : testing::devices()) {
    for (const auto& [what, change] : kKinds)
      EXPECT_EQ(train_text(io::Family::llama, device, change, moving(1)), train_text(io::Family::llama, device, change))
          << what;
    const Change recompute = [](StepOptions& o) { o.forward.recompute = true; };
    const auto want = train_text(io::Family::gpt2, device, recompute);
    for (const double share : {0.3, 1.0})
      EXPECT_EQ(train_text(io::Family::gpt2, device, recompute, moving(share)), want) << share;
    EXPECT_EQ(train_text(io::Family::gpt2, device, recompute, [&](StepOptions& o) { offload(o, 3), moving(1)(o); }),
              want);
  }
  EXPECT_EQ(train_images(moving(1)), train_images({}));
  for (const int zero : {0, 3}) EXPECT_EQ(train_ranks(2, zero, moving(1)), train_ranks(2, zero, {})) << zero;
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

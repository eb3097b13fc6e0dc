// Moments in host memory change no bit of what a training learns, whoever updates which weights.

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "hpcdl/core/error.h"
#include "hpcdl/graph/move.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/program/bytes.h"
#include "hpcdl/program/edit.h"
#include "hpcdl/testing/devices.h"
#include "hpcdl/testing/learned.h"
#include "hpcdl/train/memory_plan.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {
namespace {

/// Groups of one block of elements: the model has about 20.
void offload(StepOptions& o, int interleave) {
  o.optimizer_place = {.on_host = true, .interleave = interleave, .group = 8192};
}

/// Weights and gradients, too.
void offload_all(StepOptions& o, int resident, int interleave) {
  offload(o, interleave);
  o.parameters = {.on_host = true, .resident = resident};
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
    for (const auto& [from_host, all] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
      Learned l;
      Pool pool(2);
      StepOptions o{.batch = 2, .length = 16};
      kKinds[2].second(o);
      auto there = o;
      all ? offload_all(from_host ? o : there, 0, 3) : offload(from_host ? o : there, 3);
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

TEST(offload, weights_on_the_host_change_no_bit) {
  for (const auto device : testing::devices()) {
    for (const auto family : {io::Family::gpt2, io::Family::llama})
      for (const auto& [what, change] : kKinds)
        EXPECT_EQ(train_text(family, device, change, [](StepOptions& o) { offload_all(o, 0, 0); }),
                  train_text(family, device, change))
            << what;
    const auto& change = kKinds[2].second;
    const auto want = train_text(io::Family::llama, device, change);
    for (const auto& [resident, k] : {std::pair{0, 1}, {0, 3}, {1, 0}, {2, 3}})
      EXPECT_EQ(train_text(io::Family::llama, device, change,
                           [r = resident, i = k](StepOptions& o) { offload_all(o, r, i); }),
                want)
          << resident << " blocks stay, every " << k << "th group on the device";
    EXPECT_EQ(train_text(io::Family::llama, device, change,
                         [](StepOptions& o) {
                           offload_all(o, 0, 2);
                           o.activations = {.on_host = true, .smallest = 1};
                           o.optimizer_place.interleave = {};
                         }),
              want);
  }
  EXPECT_EQ(train_images([](StepOptions& o) { offload_all(o, 0, 0); }), train_images({}));
}

TEST(offload, moves_can_be_undone) {
  const auto programs = [](const Change& place) {
    auto model = models::LanguageModel::create(small_model(io::Family::llama), {}, true);
    Pool pool(1);
    Stream s(pool);
    StepOptions o{.batch = 2, .length = 16, .accumulate = true};
    if (place) place(o);
    const StepPrograms p(model, o, s);
    return std::pair(p.first()->planned->program, p.more()->planned->program);
  };
  const auto kept = programs({}), moved = programs([](StepOptions& o) { offload_all(o, 0, 0); });
  EXPECT_EQ(to_bytes(strip(strip(moved.first))), to_bytes(kept.first));
  EXPECT_EQ(to_bytes(strip(strip(moved.second))), to_bytes(kept.second));
  // Gradients also come back to be added to.
  EXPECT_GT(moved_bytes(moved.second), moved_bytes(moved.first));
}

/// Of a GPU: what is not in its memory lies on the host.
TEST(offload, the_plan_says_what_lies_on_the_host) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  const auto ledger = [&](const Change& place) {
    auto c = small_model(io::Family::llama);
    c.layers = 16, c.vocab = 64;
    auto described = models::LanguageModel::create(c, {}, true);
    StepOptions o{.batch = 4, .length = 16};
    o.forward.compute = DType::bf16;
    if (place) place(o);
    return plan_memory(described, o, 1, Device::cuda(0));
  };
  const auto kept = ledger({}), optimizer = ledger([](StepOptions& o) { offload(o, 0); }),
             all = ledger([](StepOptions& o) { offload_all(o, 0, 0); });
  EXPECT_EQ(all.weights + all.gradients + all.optimizer, 0);
  EXPECT_EQ(all.on_host, kept.weights + kept.gradients + kept.optimizer);
  EXPECT_LT(optimizer.on_host, all.on_host);
  EXPECT_LT(all.activations, kept.activations + (kept.weights + kept.gradients) / 4) << "of 16 blocks, two or three";
  const auto some = ledger([](StepOptions& o) { offload_all(o, 8, 0); });
  EXPECT_GT(some.weights, 0);
  EXPECT_EQ(some.on_host + some.weights + some.gradients, all.on_host);
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

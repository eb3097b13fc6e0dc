#include "hpcdl/train/memory_plan.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "hpcdl/models/family.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/train_for_tests.h"

namespace hpcdl::train {
namespace {

struct Kind {
  std::string name;
  io::Family family = io::Family::gpt2;
  bool recompute = false;
  Compute dtype = Compute::f32;
  std::int64_t accumulate = 1;
};

class MemoryPlanned : public ::testing::TestWithParam<Kind> {};

/// The plan for a model without memory equals what a step then takes.
TEST_P(MemoryPlanned, is_what_a_step_takes) {
  RunConfig c;
  c.model.family = GetParam().family;
  c.model.layers = 2, c.model.heads = 2, c.model.width = 32, c.model.context = 32, c.model.vocab = 300;
  models::resolve(c.model);
  c.train.batch = 3, c.train.recompute = GetParam().recompute, c.train.dtype = GetParam().dtype,
  c.train.accumulate = GetParam().accumulate;
  auto described = models::LanguageModel::create(c.model, std::nullopt, true),
       model = models::LanguageModel::create(c.model, 1, true);
  const auto ledger = plan_memory(described, step_options(c), c.train.accumulate, {});

  Pool pool(1);
  const TrainStep step(model, pool, step_options(c));
  EXPECT_EQ(ledger.activations, step.arena_bytes());
  const auto four = 4 * model.parameter_count();
  EXPECT_EQ(ledger.weights, four);
  EXPECT_EQ(ledger.gradients, four);
  EXPECT_EQ(ledger.optimizer, 2 * four);
  EXPECT_EQ(ledger.staged, (2 * c.train.accumulate + 1) * 2 * 3 * 32 * 4) << "this step, the next one, an evaluation";
  EXPECT_LT(ledger.other, 1 << 16) << "gaps, and the angles of rotary positions";
  EXPECT_TRUE(ledger.peak.starts_with("record ")) << ledger.peak;
}
INSTANTIATE_TEST_SUITE_P(kinds, MemoryPlanned,
                         ::testing::Values(Kind{"gpt2"}, Kind{"llama", io::Family::llama},
                                           Kind{"recompute", io::Family::llama, true},
                                           Kind{"bf16", io::Family::gpt2, false, Compute::bf16},
                                           Kind{"accumulate", io::Family::gpt2, false, Compute::f32, 4}),
                         [](const auto& kind) { return kind.param.name; });

TEST(memory_plan, a_model_larger_than_any_machine_is_planned) {
  io::ModelConfig m;
  m.layers = 96, m.heads = 96, m.width = 12288, m.context = 2048, m.vocab = 50257;
  models::resolve(m);
  RunConfig c;
  c.model = m;
  auto described = models::LanguageModel::create(m, std::nullopt, true);
  const auto ledger = plan_memory(described, step_options(c), 1, {});
  EXPECT_NEAR(static_cast<double>(ledger.weights), 4 * 174.6e9, 4e9);
  EXPECT_GT(ledger.activations, std::int64_t{1} << 38);
}

MemoryLedger of(std::int64_t activations) {
  MemoryLedger l;
  l.weights = l.gradients = 100, l.optimizer = 200, l.activations = activations;
  return l;
}

/// 100 bytes per sample; a quarter with recompute, half in 16 bits.
MemoryLedger rule(const MemoryChange& c) {
  return of(c.batch * 100 / (c.recompute ? 4 : 1) / (c.dtype == Compute::f32 ? 1 : 2));
}

/// State of the optimizer in host memory is a change of a run that can have it, and is refused where it is too large.
TEST(memory_plan, state_on_the_host_is_a_change_that_fits) {
  const auto plan = [](const MemoryChange& c) {
    auto l = of(100);
    if (c.optimizer == Tier::host) l.on_host = std::exchange(l.optimizer, 0);
    return l;
  };
  const Room room{350, "free memory of GPU 0"};
  for (const std::int64_t host : {-1, 150, 1000}) {
    MemoryAdvice advice({{}, plan({})}, room, true, 1,
                        {.host = host < 0 ? std::nullopt : std::optional(Room{host, "the host"})});
    advice.look_for_smaller(plan);
    const auto* change = advice.smallest_change();
    EXPECT_EQ(change != nullptr, host == 1000) << host;
    if (change) {
      EXPECT_EQ(advice.words(change->change), "--offload.optimizer=host");
    }
  }
  const MemoryChange there{.optimizer = Tier::host};
  EXPECT_TRUE(MemoryAdvice({there, plan(there)}, room, true, 1, {.host = Room{200, "the host"}}).fits());
  const MemoryAdvice little({there, plan(there)}, room, true, 1, {.host = Room{199, "the host"}});
  EXPECT_FALSE(little.fits());
  EXPECT_NE(little.verdict().find("offload.*"), std::string::npos) << little.verdict();
  const OtherRooms not_for_it{.host = Room{1000, "the host"}, .optimizer_on_host = false};
  MemoryAdvice none({{}, plan({})}, room, true, 1, not_for_it);
  none.look_for_smaller(plan);
  EXPECT_EQ(none.smallest_change(), nullptr);
}

TEST(memory_plan, weights_on_the_host_are_a_change_that_takes_least) {
  const auto plan = [](const MemoryChange& c) {
    auto l = of(100);
    if (c.optimizer == Tier::host) l.on_host += std::exchange(l.optimizer, 0);
    if (c.parameters == Tier::host) l.on_host += l.weights + l.gradients, l.weights = l.gradients = 0;
    return l;
  };
  OtherRooms rooms{.host = Room{400, "the host"}, .parameters_on_host = true};
  MemoryAdvice advice({{}, plan({})}, {150, "free memory of GPU 0"}, true, 1, rooms);
  advice.look_for_smaller(plan);
  ASSERT_NE(advice.smallest_change(), nullptr);
  EXPECT_EQ(advice.words(advice.smallest_change()->change), "--offload.optimizer=host --offload.parameters=host");
  rooms.host->bytes = 399;
  MemoryAdvice little({{}, plan({})}, {150, "free memory of GPU 0"}, true, 1, rooms);
  little.look_for_smaller(plan);
  EXPECT_EQ(little.smallest_change(), nullptr);
}

TEST(memory_plan, activations_on_the_host_need_room_there) {
  auto l = of(100);
  l.moved.bytes = 300, l.moved_to = Tier::host, l.on_host = 100;
  const Room room{1000, "free memory of GPU 0"};
  for (const std::int64_t host : {399, 400}) {
    const MemoryAdvice advice({{}, l}, room, true, 1, {.host = Room{host, "the host"}});
    EXPECT_EQ(advice.fits(), host == 400);
  }
}

TEST(memory_plan, images_are_not_told_to_share_layers_out) {
  for (const std::int64_t fixed : {100, 1000})
    for (const bool shareable : {false, true}) {
      MemoryLedger l = of(2000);
      l.weights = fixed;
      const MemoryAdvice a({{.batch = 1}, l}, {900, "test"}, shareable);
      EXPECT_EQ(a.verdict().find("parallel.tp") != std::string::npos, shareable) << a.verdict();
    }
}

TEST(memory_plan, the_smallest_change_that_fits_comes_first) {
  const auto advise = [](std::int64_t room, const MemoryChange& now = {.batch = 8}) {
    MemoryAdvice a({now, rule(now)}, {room, "test"});
    a.look_for_smaller(rule);
    return a;
  };
  const auto words = [](const MemoryAdvice& a) {
    return a.smallest_change() ? a.words(a.smallest_change()->change) : "none";
  };
  EXPECT_TRUE(advise(1200).fits());
  EXPECT_FALSE(advise(1199).fits());
  EXPECT_EQ(words(advise(1199)), "--train.recompute=true");
  EXPECT_EQ(words(advise(600)), "--train.recompute=true");
  EXPECT_EQ(words(advise(599)), "--train.batch=1 --train.accumulate=8");
  EXPECT_EQ(words(advise(499)), "--train.recompute=true --train.batch=2 --train.accumulate=4")
      << "without recompute even a single sample does not fit";
  EXPECT_EQ(words(advise(415)), "--train.recompute=true --train.batch=1 --train.accumulate=8 --train.dtype=bf16");
  EXPECT_EQ(words(advise(411)), "none");
  EXPECT_EQ(words(advise(700, {.batch = 6, .accumulate = 2, .recompute = true})),
            "--train.batch=3 --train.accumulate=4")
      << "of what fits, the largest; but it fits as it is";
  EXPECT_NE(advise(399).verdict().find("weights, gradients and optimizer alone take 400 B"), std::string::npos)
      << advise(399).verdict();
  const auto text = advise(599).text();
  for (const char* part : {"activations", "--train.batch=1 --train.accumulate=8", "fits", "too large", "available"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

std::string error_of(RunConfig& c, std::string& said, const comm::Group& world = {}) try {
  Hooks hooks;
  hooks.console.line = [&](std::string_view line) { said += std::string(line) + "\n"; };
  hooks.world = world;
  run(c, hooks);
  return "no error";
} catch (const Error& e) {
  return e.what();
}

TEST(memory_plan, a_run_that_does_not_fit_says_what_would_and_that_fits) {
  const io::TempFolder tmp;
  RunConfig c, less;
  for (auto* x : {&c, &less}) {
    toy_config(*x, tmp, "r");
    x->train.batch = 16, x->train.steps = 1;
  }
  const auto total = plan_run(c, {}).now().ledger.total();
  c.train.memory_limit = less.train.memory_limit = total - 1;
  std::string said;
  const auto error = error_of(c, said);
  EXPECT_TRUE(error.starts_with("[memory] the run takes ")) << error;
  EXPECT_NE(error.find("(train.memory_limit); the smallest change that fits: --train.recompute=true"),
            std::string::npos)
      << error;
  EXPECT_NE(said.find("activations"), std::string::npos) << said;
  less.train.recompute = true;
  EXPECT_EQ(error_of(less, said), "no error");
}

TEST(memory_plan, ranks_end_together) {
  const io::TempFolder tmp;
  {
    RunConfig c;
    toy_config(c, tmp, "unused");
  }
  const auto errors = testing::rank_errors(2, [&](const comm::Group& world) {
    RunConfig c;
    toy_config(c, tmp, "r");
    if (world.rank() == 1) c.train.memory_limit = 1000;
    std::string said;
    const auto error = error_of(c, said, world);
    throw Error(error);
  });
  EXPECT_NE(errors.at(0).find("another rank has too little memory"), std::string::npos) << errors[0];
  EXPECT_NE(errors.at(1).find("alone take"), std::string::npos) << errors[1];
}

TEST(memory_plan, the_limits_of_the_process_count) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const auto free_now = available_memory({});
  EXPECT_GT(free_now.bytes, 0);
  auto low = before;
  low.rlim_cur = rlim_t{8} << 30;  // limit of address space; a process with threads reserves some
  ASSERT_EQ(setrlimit(RLIMIT_AS, &low), 0);
  const auto limited = available_memory({});
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_LT(limited.bytes, std::int64_t{8} << 30);
  EXPECT_LE(available_memory({}, 4).bytes, std::max(free_now.bytes / 2, limited.bytes)) << "a quarter";
  EXPECT_EQ(available_memory({}, 1, 1).of, "memory that the cgroup leaves");
  EXPECT_EQ(available_memory({}, 1, 1).bytes, 0) << "more is taken than that";
}

}  // namespace
}  // namespace hpcdl::train

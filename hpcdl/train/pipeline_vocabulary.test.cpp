// Ranks that have different layers and divide the vocabulary: what one rank computes, and the same bits for every schedule.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/models/family.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/testing/pipeline_runs.h"
#include "hpcdl/train/check_config.h"
#include "hpcdl/train/memory_plan.h"

namespace hpcdl::train {
namespace {

using testing::Change;
using testing::Pipeline;
using testing::Shape;

Change divided(const Shape& shape, int barriers = 2, const Change& more = {}) {
  return [=](RunConfig& c) {
    shape.set(c);
    c.parallel.vocabulary = VocabularyPlace::pipeline, c.parallel.barriers = barriers;
    if (more) more(c);
  };
}

struct PipelineVocabulary : Pipeline {
  void config(RunConfig& c, const std::string& name) override {
    Pipeline::config(c, name);
    c.train.steps = 12, c.train.eval_every = 6;
    c.train.eps = 1e-5;       // gradients that consist only of rounding errors must not become full steps
    c.data.vocab_size = 301;  // divisible by none of these numbers of ranks
    c.parallel.dp = 1;
  }
};

/// Sums over ranks depend on their number, and on nothing else.
struct EverySchedule : PipelineVocabulary {
  void expect_alike(io::Family family, bool tied, const std::vector<Shape>& shapes) {
    const auto of = [&](RunConfig& c) {
      c.model.family = family, c.model.tied = tied;
      c.train.steps = 8, c.train.eval_every = 4;
    };
    train_on(1, "one", of);
    for (const int barriers : {1, 2}) {
      std::string first;
      int ranks = 0;
      for (const auto& shape : shapes) {
        const auto name = std::to_string(barriers) + shape.name();
        train_on(shape.pp, name, divided(shape, barriers, of));
        if (shape.pp != ranks) expect_near(name, "one"), first = name, ranks = shape.pp;
        else expect_same(name, first);
      }
    }
  }
};
const std::vector<Shape> kShapes = {
    {"1f1b", 2, 1, 4},  {"gpipe", 2, 1, 4}, {"zero_bubble", 2, 1, 4}, {"interleaved", 2, 2, 4}, {"zbv", 2, 2, 4},
    {"gpipe", 2, 3, 4}, {"1f1b", 3, 1, 4},  {"zbv", 3, 2, 4},         {"1f1b", 4, 1, 4},        {"gpipe", 4, 1, 4}};

TEST_F(EverySchedule, computes_what_one_rank_does) { expect_alike(io::Family::llama, false, kShapes); }

TEST_F(EverySchedule, computes_what_one_rank_does_with_one_table) { expect_alike(io::Family::gpt2, true, kShapes); }

TEST_F(EverySchedule, computes_what_one_rank_does_with_positions) {
  expect_alike(io::Family::gpt2, false, {{"1f1b", 3, 1, 4}, {"zero_bubble", 3, 1, 4}});
}

TEST_F(PipelineVocabulary, composes_with_replicas_that_divide_their_state) {
  const auto expect_alike = [&](bool tied, int barriers, const std::vector<int>& zeros) {
    const auto prefix = fmt::format("{}-{}", tied, barriers);
    const auto of = [=](RunConfig& c) { c.model.tied = tied, c.train.steps = 8, c.train.eval_every = 4; };
    train_on(1, prefix, [&](RunConfig& c) { of(c), c.train.batch = 4; });
    for (const int zero : zeros) {
      const auto name = fmt::format("{}-zero{}", prefix, zero);
      train_on(4, name, divided({"1f1b", 2, 1, 4}, barriers, [&](RunConfig& c) {
                 of(c), c.train.batch = 2, c.parallel.dp = 2, c.parallel.zero = zero;
               }));
      if (zero == 0) expect_near(name, prefix);
      else expect_same(name, prefix + "-zero0");
    }
  };
  expect_alike(false, 2, {0, 1, 2, 3});
  expect_alike(true, 1, {0, 1, 3});
}

TEST_F(PipelineVocabulary, dropout_and_recomputation_change_nothing) {
  for (const int barriers : {1, 2}) {
    const auto both = [](RunConfig& c) { c.train.dropout = 0.1; };
    const auto name = std::to_string(barriers);
    train_on(1, "one" + name, both);
    train_on(2, "kept" + name, divided({"zero_bubble", 2, 1, 4}, barriers, both));
    train_on(2, "again" + name,
             divided({"zbv", 2, 2, 4}, barriers, [&](RunConfig& c) { both(c), c.train.recompute = true; }));
    expect_near("kept" + name, "one" + name);
    expect_same("again" + name, "kept" + name);
  }
}

TEST_F(PipelineVocabulary, mixed_precision_rounds_sums) {
  for (const auto& [dtype, barriers] : {std::pair{Compute::bf16, 1}, {Compute::bf16, 2}, {Compute::fp16, 2}}) {
    const auto mixed = [dtype = dtype](RunConfig& c) { c.train.dtype = dtype; };
    const auto name = fmt::format("{}{}", io::enum_name(dtype), barriers);
    train_on(1, name, mixed);
    train_on(2, name + "-two", divided({"1f1b", 2, 1, 4}, barriers, mixed));
    const auto got = numbers(name + "-two"), want = numbers(name);
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-3 * std::fabs(want[i])) << name;
    train_on(2, name + "-other", divided({"zbv", 2, 2, 4}, barriers, mixed));
    expect_same(name + "-other", name + "-two");
  }
}

/// Of a vocabulary that is divided by tiles of 64 rows.
TEST_F(PipelineVocabulary, one_micro_batch_and_more_ranks_than_micro_batches) {
  for (const int micros : {1, 2}) {
    const auto few = [=](RunConfig& c) {
      c.train.accumulate = micros, c.train.steps = 6, c.train.eval_every = 3, c.model.vocab = 5003;
    };
    const auto name = std::to_string(micros);
    train_on(1, "one" + name, few);
    for (const int barriers : {1, 2}) {
      train_on(3, name + "by" + std::to_string(barriers), divided({"1f1b", 3, 1, micros}, barriers, few));
      expect_near(name + "by" + std::to_string(barriers), "one" + name);
    }
  }
}

TEST_F(PipelineVocabulary, a_stopped_run_goes_on_on_any_mesh) {
  for (const bool tied : {false, true}) {
    const auto of = [=](const Change& more) { return [=](RunConfig& c) { c.model.tied = tied, more(c); }; };
    const Shape shape{"1f1b", 2, 1, 4};
    const Change two = of(divided(shape)), three = of(divided({"zero_bubble", 3, 1, 4}, 1)),
                 stage = of([=](RunConfig& c) { shape.set(c); }), alone = of([](RunConfig&) {}),
                 zero = of(divided(shape, 2,
                                   [](RunConfig& c) { c.train.batch = 1, c.parallel.dp = 2, c.parallel.zero = 1; }));
    const std::string one = tied ? "tied" : "untied";
    train_on(1, one, alone);
    int number = 0;
    for (const auto& [ranks, before, more, after] : {std::tuple{2, two, 3, three},
                                                     {3, three, 2, stage},
                                                     {2, stage, 2, two},
                                                     {1, alone, 3, three},
                                                     {2, two, 1, alone},
                                                     {2, two, 4, zero},
                                                     {4, zero, 2, two}}) {
      if (tied && number == 4) break;
      const auto name = one + std::to_string(number++);
      EXPECT_TRUE(train_on(ranks, name, before, 7).stopped);
      EXPECT_EQ(train_on(more, name, after).first_step, 7) << name;
      expect_near(name, one);
    }
  }
}

TEST_F(PipelineVocabulary, layers_and_orders_can_be_chosen) {
  train_on(1, "one", [](RunConfig& c) { c.train.accumulate = 3; });
  train_on(2, "two", divided({"1f1b", 2, 1, 3}));
  expect_near("two", "one");
  train_on(2, "layers", divided({"1f1b", 2, 1, 3}, 2, [](RunConfig& c) { c.parallel.layers = {1, 5}; }));
  expect_same("layers", "two");
  train_on(2, "head", divided({"1f1b", 2, 1, 3}, 2, [](RunConfig& c) { c.parallel.layers = {5, 1}; }));
  expect_same("head", "two");
  const auto order = tmp.path() / "order.csv";
  io::write_file_atomic(order,
                        "0F0,3F0,0F1,3B0,0F2,3F1,3B1,0B0,3F2,3B2,0B1,0B2\n"
                        "1F0,2F0,1F1,2B0,1B0,2F1,1F2,2B1,2F2,1B1,2B2,1B2\n");
  train_on(2, "order", [&](RunConfig& c) {
    c.parallel.pp = 2, c.parallel.order = order, c.train.accumulate = 3;
    c.parallel.vocabulary = VocabularyPlace::pipeline;
  });
  expect_same("order", "two");
}

TEST_F(PipelineVocabulary, a_step_that_is_not_finite_ends_the_run) {
  const auto error = error_of_pipeline(
      2, divided({"1f1b", 2, 1, 4}, 2, [](RunConfig& c) { c.train.lr = 1e30, c.train.warmup = 0, c.train.clip = 0; }));
  EXPECT_NE(error.find("is not finite; the first bad tensor is"), std::string::npos) << error;
}

/// Fails in the middle of a step.
struct FailsInPass : Observer {
  int programs = 0;
  void run(const Instance& exe, Stream& s) override {
    if (++programs == 13) fail("test", "a fault");
    exe.run(s);
  }
};

/// The others wait for it in an exchange of all ranks, and not until their deadline.
TEST_F(PipelineVocabulary, a_rank_that_fails_in_a_step_ends_the_others) {
  const auto errors = testing::rank_errors(3, [&](const comm::Group& world) {
    RunConfig c;
    config(c, "fails");
    divided({"1f1b", 3, 1, 4})(c);
    c.train.eval_every = 0;
    FailsInPass fault;
    Hooks hooks;
    hooks.world = world;
    if (world.rank() == 1) hooks.observer = &fault;
    run(c, hooks);
  });
  EXPECT_NE(errors[1].find("a fault"), std::string::npos) << errors[1];
  for (const std::size_t other : {0, 2}) EXPECT_NE(errors[other].find("rank 1"), std::string::npos) << errors[other];
}

TEST_F(PipelineVocabulary, says_what_would_fit) {
  const auto expect = [](const char* part, const Change& change, std::int64_t pp = 2) {
    const auto error = error_of([&] {
      RunConfig c;
      c.parallel.pp = pp, c.parallel.vocabulary = VocabularyPlace::pipeline;
      change(c);
      check_config(c);
    });
    EXPECT_NE(error.find(part), std::string::npos) << error << "\nexpected: " << part;
  };
  expect("no error", [](RunConfig&) {});
  expect("parallel.pp is 1", [](RunConfig&) {}, 1);
  expect("parallel.barriers = 1 is for ranks that divide the vocabulary",
         [](RunConfig& c) { c.parallel.vocabulary = VocabularyPlace::stage, c.parallel.barriers = 1; });
  expect("set train.device = \"cpu\"", [](RunConfig& c) { c.train.device = "cuda"; });
  expect("set parallel.tp = 1", [](RunConfig& c) { c.parallel.tp = 2; });
  expect("set parallel.cp = 1", [](RunConfig& c) { c.parallel.cp = 2; });
  expect("a mixture of experts", [](RunConfig& c) { c.model.family = io::Family::mixtral, c.model.experts = 4; });
  expect("has no vocabulary", [](RunConfig& c) { c.model.family = io::Family::resnet18; });
  expect("set offload.optimizer = \"none\"", [](RunConfig& c) { c.offload.optimizer = Tier::disk; });
  expect("set adapter.method = \"none\"",
         [](RunConfig& c) { c.adapter.method = models::AdapterMethod::lora, c.init = "somewhere"; });
  expect("parallel.barriers = 2", [](RunConfig& c) { c.parallel.barriers = 1, c.train.dtype = Compute::fp16; });
  const auto capped = error_of_pipeline(2, divided({"1f1b", 2, 1, 4}, 2, [](RunConfig& c) { c.model.logit_cap = 30; }));
  EXPECT_NE(capped.find("parallel.vocabulary = \"stage\""), std::string::npos) << capped;
  const auto host = error_of_pipeline(2, divided({"round_robin", 2, 1, 4}));
  EXPECT_NE(host.find("keeps stages in host memory"), std::string::npos) << host;
}

/// Of ranks without peers: the head is what most of the memory goes to.
TEST(pipeline_vocabulary, a_plan_divides_the_memory) {
  const auto ledger = [](int rank, bool divides) {
    io::ModelConfig m{.layers = 2, .heads = 4, .width = 256, .context = 32, .vocab = 8192};
    m.family = io::Family::llama, m.tied = true;
    models::resolve(m);
    const auto group = comm::Group::described(rank, 2, "pp");
    const auto share = divides ? std::make_shared<nn::VocabularyShare>() : nullptr;
    if (share) share->axis = Axis("pp", 2, nullptr), share->rank = rank;
    auto model = models::LanguageModel::create(m, std::nullopt, true, {}, {}, {}, models::Values::later, share);
    StepOptions o{.batch = 2, .length = 32, .accumulate = true};
    o.stages = {.group = group, .micros = 4, .barriers = divides ? 2 : 0};
    return plan_memory(model, o, 4, {});
  };
  const auto bytes = [](const MemoryLedger& l) {
    return static_cast<double>(l.weights + l.gradients + l.optimizer + l.activations);
  };
  const auto first = ledger(0, true), last = ledger(1, true);
  const auto whole_first = ledger(0, false), whole_last = ledger(1, false);
  EXPECT_LT(std::max(bytes(first), bytes(last)), 1.15 * std::min(bytes(first), bytes(last)));
  EXPECT_LT(std::max(bytes(first), bytes(last)), 0.8 * std::max(bytes(whole_first), bytes(whole_last)));
  EXPECT_EQ(first.weights + last.weights + 4 * 8192 * 256, whole_first.weights + whole_last.weights)
      << "both stages have the whole table";
}

}  // namespace
}  // namespace hpcdl::train

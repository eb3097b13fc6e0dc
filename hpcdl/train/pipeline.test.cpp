// Training on ranks that have different layers, which are threads here: every schedule gives the bits of one rank.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/pipe/order_file.h"
#include "hpcdl/testing/pipeline_runs.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/check_config.h"

namespace hpcdl::train {
namespace {

using testing::Change;
using testing::Pipeline;
using testing::Shape;

TEST_F(Pipeline, every_schedule_gives_the_bits_of_one_rank) {
  const std::vector<Shape> shapes = {{"gpipe", 2, 1, 4},       {"gpipe", 2, 3, 2},       {"1f1b", 2, 1, 4},
                                     {"1f1b", 4, 1, 4},        {"1f1b", 3, 1, 2},        {"interleaved", 2, 2, 4},
                                     {"interleaved", 3, 2, 4}, {"zero_bubble", 2, 1, 4}, {"zero_bubble", 3, 1, 2},
                                     {"zero_bubble", 4, 1, 4}, {"zbv", 2, 2, 4},         {"zbv", 3, 2, 2}};
  for (const auto family : {io::Family::gpt2, io::Family::llama}) {
    const auto of = [&](RunConfig& c) { c.model.family = family; };
    const auto prefix = std::string(io::enum_name(family));
    for (const int micros : {2, 4})
      train_on(1, prefix + "-one-" + std::to_string(micros), [&](RunConfig& c) { of(c), c.train.accumulate = micros; });
    for (const auto& shape : shapes) {
      const auto name = prefix + "-" + shape.name();
      train_on(shape.pp, name, [&](RunConfig& c) { of(c), shape.set(c); });
      expect_same(name, prefix + "-one-" + std::to_string(shape.micros));
    }
  }
}

TEST_F(Pipeline, composes_with_data_and_tensor_parallelism) {
  const auto two_rows = [](RunConfig& c) { c.train.batch = 4, c.train.accumulate = 4; };
  train_on(1, "one", two_rows);
  const Shape shape{"zero_bubble", 2, 1, 4};
  for (const auto& [dp, tp] : {std::pair{2, 1}, {1, 2}, {2, 2}}) {
    const auto name = fmt::format("{}x{}", dp, tp);
    train_on(2 * dp * tp, name, [&, dp = dp, tp = tp](RunConfig& c) {
      shape.set(c);
      c.train.batch = 4 / dp, c.parallel.dp = dp, c.parallel.tp = tp;
    });
    expect_near(name, "one");
  }
}

TEST_F(Pipeline, dropout_and_recomputation_keep_the_bits) {
  const auto both = [](RunConfig& c) { c.train.dropout = 0.1, c.train.recompute = true; };
  train_on(1, "one", both);
  for (const Shape& shape : {Shape{"zero_bubble", 2, 1, 4}, {"interleaved", 2, 2, 4}}) {
    train_on(2, shape.name(), [&](RunConfig& c) { both(c), shape.set(c); });
    expect_same(shape.name(), "one");
  }
}

TEST_F(Pipeline, mixed_precision_keeps_the_bits) {
  for (const auto dtype : {Compute::bf16, Compute::fp16}) {
    const auto mixed = [&](RunConfig& c) { c.train.dtype = dtype; };
    const auto name = std::string(io::enum_name(dtype));
    train_on(1, name, mixed);
    train_on(2, name + "-two", [&](RunConfig& c) { mixed(c), Shape{"zero_bubble", 2, 1, 4}.set(c); });
    expect_same(name + "-two", name);
  }
}

/// The first and the last stage have the same table, and add up its gradient in another order than one rank.
TEST_F(Pipeline, stages_share_an_embedding) {
  // Gradients that consist only of rounding errors must not become full steps.
  const auto tied = [](RunConfig& c) { c.model.tied = true, c.train.eps = 1e-5; };
  train_on(1, "one", tied);
  for (const Shape& shape : {Shape{"1f1b", 2, 1, 4}, {"zero_bubble", 3, 1, 4}, {"zbv", 2, 2, 4}}) {
    train_on(shape.pp, shape.name(), [&](RunConfig& c) { tied(c), shape.set(c); });
    expect_near(shape.name(), "one");
  }
  train_on(4, "replicas", [&](RunConfig& c) {
    tied(c), Shape{"interleaved", 2, 2, 4}.set(c);
    c.train.batch = 1, c.parallel.dp = 2;
  });
  expect_near("replicas", "one");
}

TEST_F(Pipeline, a_stopped_run_goes_on_on_any_mesh) {
  const Shape two{"1f1b", 2, 1, 4}, three{"zbv", 3, 2, 4};
  const auto on = [](const Shape& s) { return [&](RunConfig& c) { s.set(c); }; };
  const Change alone = [](RunConfig&) {};
  train_on(1, "one", alone);
  EXPECT_TRUE(train_on(2, "a", on(two), 7).stopped);
  EXPECT_EQ(train_on(3, "a", on(three)).first_step, 7);
  expect_same("a", "one");
  EXPECT_TRUE(train_on(1, "b", alone, 7).stopped);
  EXPECT_EQ(train_on(2, "b", on(two)).first_step, 7);
  expect_same("b", "one");
  EXPECT_TRUE(train_on(3, "c", on(three), 7).stopped);
  EXPECT_EQ(train_on(1, "c", alone).first_step, 7);
  expect_same("c", "one");
}

TEST_F(Pipeline, layers_can_be_chosen) {
  train_on(1, "one", [](RunConfig&) {});
  train_on(2, "chosen", [](RunConfig& c) { c.parallel.pp = 2, c.parallel.layers = {5, 1}; });
  expect_same("chosen", "one");
}

/// Orders of a file: the same as a schedule, and one that no schedule has.
TEST_F(Pipeline, an_order_can_come_from_a_file) {
  train_on(1, "one", [](RunConfig& c) { c.train.accumulate = 3; });
  const auto order = tmp.path() / "order.csv";
  for (const char* text : {"0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n",
                           "# the last rank has the first stage, and halves where it waits\n"
                           "2F0 2B0 2F1 2F2 2B1 2I2 2W2\n"
                           "1F0,1F1,1B0,1F2,1I1,1W1,1B2\n"
                           "0F0,0F1,0F2,0I0,0W0,0B1,0I2,0W2\n",
                           "0F0,3F0,0F1,3B0,0F2,3F1,3B1,0B0,3F2,3B2,0B1,0B2\n"
                           "1F0,2F0,1F1,2B0,1B0,2F1,1F2,2B1,2F2,1B1,2B2,1B2\n"}) {
    io::write_file_atomic(order, text);
    const int ranks = pipe::read_order(order).ranks();
    const auto name = "file" + std::to_string(std::string_view(text).size());
    train_on(ranks, name,
             [&](RunConfig& c) { c.parallel.pp = ranks, c.parallel.order = order, c.train.accumulate = 3; });
    expect_same(name, "one");
  }
}

TEST_F(Pipeline, an_order_that_cannot_be_trained_is_refused) {
  const auto order = tmp.path() / "order.csv";
  const auto expect = [&](const char* text, const char* part, const char* fits) {
    io::write_file_atomic(order, text);
    const auto error = error_of_pipeline(
        2, [&](RunConfig& c) { c.parallel.pp = 2, c.parallel.order = order, c.train.accumulate = 2; });
    for (const auto* words : {part, fits, "order.csv"})
      EXPECT_NE(error.find(words), std::string::npos) << error << "\nexpected: " << words;
  };
  const auto* schedule = "--schedule 1f1b --stages 2 --micros 2";
  expect("0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n", "the backward of stage 0, micro-batch 1 is missing", schedule);
  expect("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1I1\n", "the weight gradient of stage 1, micro-batch 1 is missing", schedule);
  expect("0F0,0F1,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", "the forward of stage 0, micro-batch 1 is there twice", schedule);
  expect("0F0,0F1,0B0,0B1,0I1\n1F0,1B0,1F1,1B1\n", "is there as a whole and in halves", schedule);
  expect("0F0,0F1,0B0\n1F0,1B0,1F1,1B1,0B1\n", "the backward of stage 0, micro-batch 1 belongs to rank 0", schedule);
  expect("0B0,0F0,0F1,0B1\n1F0,1B0,1F1,1B1\n", "which it needs", schedule);
  expect("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", "deadlock", schedule);
  expect("0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n", "comes after the backward of stage 0, micro-batch 1", "swap the two");
  expect("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n2F0,2B0,2F1,2B1\n", "the orders of 3 ranks", "set parallel.pp = 3");
  expect("0F0,0B0\n1F0,1B0\n", "its step has 1 micro-batch,", "set train.accumulate = 1");
  expect("0F0,0F1,0B0,0B1\n1F0,1B0,1X1,1B1\n", "expected an action such as 1F0", "line 2");
  const auto error = error_of_pipeline(2, [&](RunConfig& c) {
    c.parallel.pp = 2, c.parallel.order = order, c.parallel.schedule = "zbv", c.parallel.chunks = 2;
  });
  EXPECT_NE(error.find("parallel.schedule = \"zbv\" is for orders by name"), std::string::npos) << error;
  const auto missing = error_of_pipeline(2, [&](RunConfig& c) { c.parallel.pp = 2, c.parallel.order = "nowhere.csv"; });
  EXPECT_NE(missing.find("nowhere.csv"), std::string::npos) << missing;
}

TEST_F(Pipeline, says_what_would_fit) {
  const auto expect = [&](int ranks, const char* part, const Change& change) {
    const auto error = error_of_pipeline(ranks, change);
    EXPECT_NE(error.find(part), std::string::npos) << error << "\nexpected: " << part;
  };
  expect(2, "makes 8 stages, but the model has 6 layers",
         [](RunConfig& c) { c.parallel.pp = 2, c.parallel.schedule = "interleaved", c.parallel.chunks = 4; });
  expect(2, "for example [3, 3]", [](RunConfig& c) { c.parallel.pp = 2, c.parallel.layers = {2, 2}; });
  expect(2, "needs parallel.chunks = 2 or more, got 1",
         [](RunConfig& c) { c.parallel.pp = 2, c.parallel.schedule = "interleaved"; });
  expect(2, "did you mean", [](RunConfig& c) { c.parallel.pp = 2, c.parallel.schedule = "1f1c"; });
  expect(2, "keeps stages in host memory",
         [](RunConfig& c) { c.parallel.pp = 2, c.parallel.schedule = "round_robin"; });
  expect(2, "offload.optimizer", [](RunConfig& c) { c.parallel.pp = 2, c.offload.optimizer = Tier::host; });
  expect(2, "fp8-emu", [](RunConfig& c) { c.parallel.pp = 2, c.train.dtype = Compute::fp8_emu; });
  expect(1, "parallel.chunks = 2 is for pipelines", [](RunConfig& c) { c.parallel.chunks = 2; });
  expect(1, "start them with `hpcdl launch -n 2", [](RunConfig& c) { c.parallel.pp = 2; });
}

/// Exchanges between replicas beside those between stages have run on CPUs alone.
TEST_F(Pipeline, says_what_would_fit_on_gpus) {
  const auto expect = [](const char* part, const Change& change) {
    const auto error = error_of([&] {
      RunConfig c;
      c.parallel.pp = 2, c.train.device = "cuda";
      change(c);
      check_config(c);
    });
    EXPECT_NE(error.find(part), std::string::npos) << error << "\nexpected: " << part;
  };
  expect("set parallel.zero = 2", [](RunConfig& c) { c.parallel.zero = 3; });
  expect("parallel.cp and parallel.pp have not been run together on GPUs", [](RunConfig& c) { c.parallel.cp = 2; });
  expect("parallel.ep and parallel.pp have not been run together on GPUs", [](RunConfig& c) {
    c.model.family = io::Family::mixtral, c.model.experts = 4, c.parallel.dp = 1, c.parallel.ep = 2;
  });
  expect("a mixture of experts", [](RunConfig& c) { c.model.family = io::Family::mixtral, c.model.experts = 4; });
  expect("set parallel.dp = 1", [](RunConfig& c) { c.model.family = io::Family::resnet18, c.sync_batch_norm = true; });
  expect("no error", [](RunConfig& c) { c.parallel.zero = 2; });
  expect("no error",
         [](RunConfig& c) { c.model.family = io::Family::mixtral, c.model.experts = 4, c.parallel.dp = 1; });
}

/// Numbers that are not finite end a run of many ranks like one of a single rank.
TEST_F(Pipeline, a_step_that_is_not_finite_ends_the_run) {
  const auto error = error_of_pipeline(
      2, [](RunConfig& c) { c.parallel.pp = 2, c.train.lr = 1e30, c.train.warmup = 0, c.train.clip = 0; });
  EXPECT_NE(error.find("is not finite; the first bad tensor is"), std::string::npos) << error;
}

/// Fails in the middle of a step.
struct Fails : Observer {
  int programs = 0;
  void run(const Instance& exe, Stream& s) override {
    if (++programs == 9) fail("test", "a fault");
    exe.run(s);
  }
};

/// The others do not wait for it until their deadline.
TEST_F(Pipeline, a_rank_that_fails_in_a_step_ends_the_others) {
  const auto errors = testing::rank_errors(3, [&](const comm::Group& world) {
    RunConfig c;
    config(c, "fails");
    c.parallel.pp = 3, c.train.eval_every = 0;
    Fails fault;
    Hooks hooks;
    hooks.world = world;
    if (world.rank() == 1) hooks.observer = &fault;
    run(c, hooks);
  });
  EXPECT_NE(errors[1].find("a fault"), std::string::npos) << errors[1];
  for (const int other : {0, 2})
    EXPECT_NE(errors[static_cast<std::size_t>(other)].find("rank 1"), std::string::npos)
        << errors[static_cast<std::size_t>(other)];
}

}  // namespace
}  // namespace hpcdl::train

// Runs that train the factors of a compressed model.

#include <gtest/gtest.h>

#include <string>

#include "hpcdl/models/compress.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/testing/tune_toy.h"
#include "hpcdl/train/runs_for_tests.h"
#include "hpcdl/train/train_for_tests.h"

namespace hpcdl::train {
namespace {

namespace fs = std::filesystem;
using Change = std::function<void(RunConfig&)>;

struct CompressedRuns : ::testing::TestWithParam<nn::Method> {
  /// Trains a toy model for so many steps, and writes it in half of its size to tmp/half.
  void make(std::int64_t steps, io::Family family = io::Family::llama) {
    RunConfig c;
    toy_config(c, tmp, "base");
    c.model.family = family, c.train.steps = steps;
    run(c, {});
    Pool pool(2);
    models::compress_folder(pool, tmp / "base" / "model", tmp / "half", {.method = GetParam(), .ratio = 0.5});
  }
  RunSummary tune(const std::string& name, const Change& change = {}, int ranks = 1) {
    return testing::tune_toy(tmp, name, ranks, [&](RunConfig& c) {
      c.init = (tmp / "half").string();
      if (change) change(c);
    });
  }
  std::string refused(const Change& change) {
    return error_of([&] { tune("refused", change); });
  }

  io::TempFolder tmp;
};
INSTANTIATE_TEST_SUITE_P(compressed, CompressedRuns,
                         ::testing::Values(nn::Method::svd, nn::Method::monarch, nn::Method::blast),
                         [](const auto& p) { return std::string(nn::method_name(p.param)); });

/// Without a learning rate, a run writes the folder again, to the byte; with one, its loss falls.
TEST_P(CompressedRuns, start_from_the_factors_and_train_all_of_them) {
  for (const auto family : {io::Family::llama, io::Family::gpt2}) {
    make(4, family);
    const auto still = tune("still", [](RunConfig& c) { c.train.lr = 0, c.train.warmup = 0; });
    expect_same_file(tmp / "half" / "model.safetensors", tmp / "still" / "model" / "model.safetensors");
    EXPECT_EQ(models::read_hf_config(tmp / "half").compressed,
              models::read_hf_config(tmp / "still" / "model").compressed);
    EXPECT_LT(tune("tuned").loss, still.loss);
    const auto before = io::TensorFolder::open(tmp / "half"), after = io::TensorFolder::open(tmp / "tuned" / "model");
    int factors = 0;
    for (const auto& t : before.tensors()) {
      if (t.name.find(".factor_") == std::string::npos) continue;
      const View a = before.at(t.name), b = after.at(t.name);
      for (std::int64_t i = 0; i < a.size(); ++i) EXPECT_NE(a.ptr<float>()[i], b.ptr<float>()[i]) << t.name << " " << i;
      ++factors;
    }
    EXPECT_GT(factors, 10);
    for (const char* folder : {"base", "half", "still", "tuned"}) fs::remove_all(tmp / folder);
  }
}

TEST_P(CompressedRuns, a_stopped_run_goes_on_as_if_it_had_not_been) {
  make(2);
  for (const auto dtype : {Compute::f32, Compute::bf16}) {
    const auto kind = std::string(io::enum_name(dtype));
    const Change change = [&](RunConfig& c) { c.train.dtype = dtype, c.checkpoint.every = 3; };
    tune("whole" + kind, change);
    tune("part" + kind, change);
    fs::remove_all(tmp / ("part" + kind) / "checkpoints" / "step_00000006");
    EXPECT_EQ(tune("part" + kind, change).first_step, 3);
    expect_same_file(tmp / ("whole" + kind) / "model" / "model.safetensors",
                     tmp / ("part" + kind) / "model" / "model.safetensors");
  }
}

TEST_P(CompressedRuns, recomputing_and_ranks_change_nothing) {
  make(2);
  const auto alone = tune("one", [](RunConfig& c) { c.train.batch = 4; });
  tune("again", [](RunConfig& c) { c.train.batch = 4, c.train.recompute = true; });
  expect_same_file(tmp / "one" / "model" / "model.safetensors", tmp / "again" / "model" / "model.safetensors");
  const auto many = tune("dp", [](RunConfig& c) { c.train.batch = 2; }, 2);
  EXPECT_NEAR(many.loss, alone.loss, 1e-5 * alone.loss);
  EXPECT_LT(weights_apart(tmp / "one" / "model", tmp / "dp" / "model"), 1e-5);
}

/// An adapter beside frozen factors.
TEST_P(CompressedRuns, an_adapter_trains_beside_the_factors) {
  make(4);
  const auto adapt = [](double lr) {
    return [=](RunConfig& c) {
      c.adapter.method = models::AdapterMethod::lora, c.adapter.r = 4;
      c.train.lr = lr, c.train.steps = 20, c.train.eval_every = 20;
    };
  };
  const auto still = tune("still", adapt(1e-30));
  EXPECT_LT(tune("lora", adapt(1e-2)).eval_loss, still.eval_loss);
  models::LanguageModel::open(tmp / "half", {}, {.adapter = tmp / "lora" / "model"});
}

/// A text whose next word depends on the last two, most of the time.
std::string text_of_pairs() {
  static constexpr const char* kWords[] = {"ant", "bee", "cow",  "dog", "elk", "fox",
                                           "gnu", "hen", "ibis", "jay", "kite"};
  constexpr std::uint32_t kCount = 11;
  std::string text;
  std::uint32_t x = 99, last = 0, before = 1;
  const auto draw = [&](std::uint32_t below) { return ((x = x * 1664525u + 1013904223u) >> 16) % below; };
  for (int i = 0; i < 30000; ++i) {
    const auto next = draw(5) == 0 ? draw(kCount) : (last * last * 3 + before * 7 + last * before * 5 + 2) % kCount;
    before = last, last = next;
    text += kWords[next];
    text += i % 400 == 399 ? ".\n\n" : " ";
  }
  return text;
}

/// At half the size, a model learns what the whole model learns in the same steps, to 2 % of the loss.
TEST(compressed, half_of_the_size_trains_to_the_same_loss) {
  const io::TempFolder tmp;
  io::write_file_atomic(tmp / "toy.txt", text_of_pairs());
  const auto longer = [](RunConfig& c, std::int64_t steps) {
    c.train.steps = c.train.eval_every = steps;
    c.train.batch = 16, c.train.lr = 1e-2, c.train.eval_batches = 20;
  };
  RunConfig c;
  toy_config(c, tmp, "base");
  longer(c, 400);
  c.model.width = 64;
  run(c, {});
  const auto tune = [&](const std::string& name, const fs::path& init, std::int64_t steps, double lr) {
    return testing::tune_toy(tmp, name, 1,
                             [&](RunConfig& more) {
                               longer(more, steps);
                               more.init = init.string(), more.train.lr = lr;
                             })
        .eval_loss;
  };
  const double whole = tune("whole", tmp / "base" / "model", 200, 5e-3);
  Pool pool(2);
  for (const auto& [method, name] : nn::kMethodNames) {
    const fs::path half = tmp / std::string(name);
    models::compress_folder(pool, tmp / "base" / "model", half, {.method = method, .ratio = 0.5});
    const double before = tune(fmt::format("{}-still", name), half, 1, 1e-30);
    const double after = tune(fmt::format("{}-tuned", name), half, 200, 5e-3);
    EXPECT_GT(before, 1.02 * whole) << name;
    EXPECT_LT(after, 1.02 * whole) << name;
    RecordProperty(std::string(name), fmt::format("{:.4f} of {:.4f}, {:.4f} untrained", after, whole, before));
  }
}

TEST_P(CompressedRuns, what_they_cannot_do_is_refused) {
  make(2);
  EXPECT_NE(refused([](RunConfig& c) {
              c.train.dtype = Compute::fp8_emu, c.train.fp8_first = c.train.fp8_last = 0;
            }).find("not trained in fp8"),
            std::string::npos);
  EXPECT_NE(error_of([&] { tune("tp", [](RunConfig& c) { c.parallel.tp = 2; }, 2); }).find("use one rank"),
            std::string::npos);
  if (GetParam() != nn::Method::svd) {
    EXPECT_NE(refused([](RunConfig& c) { c.train.device = "cuda"; }).find("which only a CPU multiplies"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace hpcdl::train

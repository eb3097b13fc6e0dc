// Runs that train an adapter beside a GGUF file.

#include <gtest/gtest.h>

#include "hpcdl/io/crc32c.h"
#include "hpcdl/models/adapter_files.h"
#include "hpcdl/models/gguf/export.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/merge_adapter.h"
#include "hpcdl/testing/tune_toy.h"
#include "hpcdl/train/runs_for_tests.h"
#include "hpcdl/train/train_for_tests.h"

namespace hpcdl::train {
namespace {

namespace fs = std::filesystem;

using Change = std::function<void(RunConfig&)>;

struct GgufBase : ::testing::TestWithParam<io::Family> {
  /// A toy model in tmp/base/model, and its files tmp/q8_0.gguf and tmp/q4_k.gguf.
  GgufBase() {
    RunConfig c;
    toy_config(c, tmp, "base");
    c.model.family = GetParam(), c.model.width = 256, c.model.heads = 4, c.model.ffn = 512;
    c.train.steps = 2;
    run(c, {});
    Pool pool(2);
    for (const auto type : {io::GgufType::q8_0, io::GgufType::q4_k})
      models::write_gguf(tmp / "base" / "model", models::read_hf_config(tmp / "base" / "model"), file(type), type,
                         pool);
  }

  fs::path file(io::GgufType type) const { return tmp / (type == io::GgufType::q8_0 ? "q8_0.gguf" : "q4_k.gguf"); }
  fs::path adapter(const std::string& name) const { return tmp / name / "model" / models::kAdapterTensors; }

  RunSummary tune(const std::string& name, const fs::path& init, const Change& change = {}, int ranks = 1) {
    return testing::tune_toy(tmp, name, ranks, [&](RunConfig& c) {
      c.init = init.string();
      c.adapter.method = models::AdapterMethod::lora, c.adapter.r = 4;
      c.train.batch = 4 / ranks, c.train.lr = 1e-2;
      if (change) change(c);
    });
  }
  /// A folder with the values of a file in f32, and the tokenizer.
  fs::path decoded(io::GgufType type) {
    const auto folder = tmp / ("values of " + file(type).stem().string());
    Pool pool(2);
    models::LanguageModel::open(file(type), {}, {}, {DType::f32, &pool}).save(folder);
    fs::copy_file(tmp / "base" / "model" / "tokenizer.json", folder / "tokenizer.json");
    return folder;
  }

  io::TempFolder tmp;
};

constexpr io::GgufType kTypes[] = {io::GgufType::q8_0, io::GgufType::q4_k};

/// The file is what is multiplied: the run is that beside the values that it holds, and the file stays as it was.
TEST_P(GgufBase, trains_as_beside_its_own_values_in_f32) {
  for (const auto type : kTypes) {
    const auto name = file(type).stem().string();
    SCOPED_TRACE(name);
    const auto crc = io::crc32c(io::read_file(file(type)));
    const auto quantized = tune(name, file(type)), exact = tune("exact " + name, decoded(type));
    EXPECT_NEAR(quantized.loss, exact.loss, 1e-5 * exact.loss);
    EXPECT_LT(weights_apart(adapter(name), adapter("exact " + name)), 1e-4);
    EXPECT_EQ(io::crc32c(io::read_file(file(type))), crc) << "a base is never written";
  }
}

TEST_P(GgufBase, its_matrices_stay_quantised) {
  models::AdapterOptions options;
  options.method = models::AdapterMethod::lora, options.r = 1;
  Pool pool(1);
  const auto bytes = [&](const fs::path& base) {
    return models::LanguageModel::open_for_adapting(base, options, 1, {DType::none, &pool}).bytes();
  };
  const auto plain = bytes(tmp / "base" / "model"), q8 = bytes(file(io::GgufType::q8_0)),
             q4 = bytes(file(io::GgufType::q4_k));
  EXPECT_LT(q8, plain / 2);
  EXPECT_LT(q4, q8);
}

TEST_P(GgufBase, a_stopped_run_goes_on_as_if_it_had_not_been) {
  const Change change = [](RunConfig& c) { c.adapter.dropout = 0.1, c.checkpoint.every = 3; };
  tune("whole", file(io::GgufType::q4_k), change);
  tune("half", file(io::GgufType::q4_k), change);
  fs::remove_all(tmp / "half" / "checkpoints" / "step_00000006");
  EXPECT_EQ(tune("half", file(io::GgufType::q4_k), change).first_step, 3);
  expect_same_file(adapter("whole"), adapter("half"));
}

TEST_P(GgufBase, ranks_train_what_one_rank_trains) {
  const auto alone = tune("one", file(io::GgufType::q8_0)), two = tune("two", file(io::GgufType::q8_0), {}, 2);
  EXPECT_NEAR(two.loss, alone.loss, 1e-5 * alone.loss);
  EXPECT_LT(weights_apart(adapter("one"), adapter("two")), 2e-5);
}

/// The adapter belongs to this file: it opens with it, and with no other one.
TEST_P(GgufBase, the_adapter_is_used_beside_the_file) {
  tune("run", file(io::GgufType::q8_0));
  const auto with = [&](const fs::path& base) {
    return models::LanguageModel::open(base, {}, {.adapter = tmp / "run" / "model"});
  };
  EXPECT_NE(with(file(io::GgufType::q8_0)).codec(), nullptr);
  EXPECT_NE(error_of([&] { with(file(io::GgufType::q4_k)); }), "");
}

INSTANTIATE_TEST_SUITE_P(families, GgufBase, ::testing::Values(io::Family::llama, io::Family::qwen2),
                         [](const auto& p) { return std::string(io::enum_name(p.param)); });

}  // namespace
}  // namespace hpcdl::train

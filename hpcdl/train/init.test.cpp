// Runs that start from the weights of a model folder.

#include "hpcdl/train/init.h"

#include <gtest/gtest.h>

#include <cmath>

#include "hpcdl/data/chat_for_tests.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/testing/tune_toy.h"
#include "hpcdl/train/run_table.h"
#include "hpcdl/train/runs_for_tests.h"
#include "hpcdl/train/train_for_tests.h"

namespace hpcdl::train {
namespace {

namespace fs = std::filesystem;

using Change = std::function<void(RunConfig&)>;

/// A toy run that creates a model, in tmp/base.
void make_base(const io::TempFolder& tmp, io::Family family = io::Family::llama) {
  RunConfig c;
  toy_config(c, tmp, "base");
  c.model.family = family, c.train.steps = 2;
  if (models::row_of(family).mixture) c.model.experts = 4, c.model.chosen_experts = 2;
  run(c, {});
}

/// A toy run from tmp/base/model into tmp/NAME, on so many ranks; the result of the first.
RunSummary tune(const io::TempFolder& tmp, const std::string& name, const Change& change = {}, int ranks = 1) {
  return testing::tune_toy(tmp, name, ranks, change);
}

std::string refused(const io::TempFolder& tmp, const Change& change) {
  return error_of([&] { tune(tmp, "refused", change); });
}

/// Without a learning rate, a run writes the folder again, to the byte.
TEST(init, every_family_starts_from_the_weights_of_its_folder) {
  for (const auto family : models::all_text_families()) {
    const io::TempFolder tmp;
    make_base(tmp, family);
    const auto still = tune(tmp, "still", [](RunConfig& c) { c.train.lr = 0, c.train.warmup = 0; });
    for (const char* file : {"model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"})
      expect_same_file(tmp / "base" / "model" / file, tmp / "still" / "model" / file);
    EXPECT_LT(tune(tmp, "tuned").loss, still.loss) << io::enum_name(family);
  }
}

TEST(init, a_stopped_run_goes_on_as_if_it_had_not_been) {
  const io::TempFolder tmp;
  make_base(tmp);
  tune(tmp, "whole");
  tune(tmp, "half", [](RunConfig& c) { c.checkpoint.every = 3; });
  fs::remove_all(tmp / "half" / "checkpoints" / "step_00000006");
  EXPECT_EQ(tune(tmp, "half").first_step, 3);
  expect_same_file(tmp / "whole" / "model" / "model.safetensors", tmp / "half" / "model" / "model.safetensors");
}

TEST(init, ranks_train_what_one_rank_trains) {
  const io::TempFolder tmp;
  make_base(tmp);
  const auto alone = tune(tmp, "one", [](RunConfig& c) { c.train.batch = 4; });
  for (const auto& [name, dp, tp] : {std::tuple{"dp", 2, 1}, {"tp", 1, 2}, {"mesh", 2, 2}}) {
    const auto many = tune(
        tmp, name, [&, shares = dp, splits = tp](RunConfig& c) { c.train.batch = 4 / shares, c.parallel.tp = splits; },
        dp * tp);
    EXPECT_NEAR(many.loss, alone.loss, 1e-5 * alone.loss) << name;
    EXPECT_LT(weights_apart(tmp / "one" / "model", tmp / name / "model"), 1e-5) << name;
  }
}

TEST(init, rows_may_be_shorter_than_the_context) {
  const io::TempFolder tmp;
  make_base(tmp);
  tune(tmp, "short", [](RunConfig& c) { c.train.length = 8, c.train.dtype = Compute::bf16; });
  expect_same_file(tmp / "base" / "model" / "config.json", tmp / "short" / "model" / "config.json");
}

TEST(init, what_contradicts_the_folder_is_refused_by_name) {
  const io::TempFolder tmp;
  make_base(tmp);
  EXPECT_EQ(
      refused(tmp, [](RunConfig& c) { c.model.layers = 3, c.model.width = 48; }),
      fmt::format("[config] model.init = \"{}\" has a model of its own, which contradicts model.layers = 3, where "
                  "it has 2, and model.width = 48, where it has 32: leave these keys out",
                  (tmp / "base").string()));
  EXPECT_EQ(refused(tmp, [](RunConfig& c) { c.train.length = 33; }),
            "[config] train.length = 33 exceeds model.context = 32, the longest sequence");
  EXPECT_NE(refused(tmp, [](RunConfig& c) { c.init += "/nothing"; }).find("found none of them"), std::string::npos);
  EXPECT_NE(refused(tmp, [](RunConfig& c) { c.model.family = io::Family::resnet18; }).find("model.family"),
            std::string::npos);
  fs::create_directories(tmp / "other");
  data::chat_tokenizer().save(tmp / "other" / "tokenizer.json");
  EXPECT_NE(refused(tmp, [&](RunConfig& c) { c.data.tokenizer = (tmp / "other").string(); })
                .find("is another tokenizer than that of model.init: leave it out"),
            std::string::npos);
  fs::remove(tmp / "base" / "model" / "tokenizer.json");
  EXPECT_NE(refused(tmp, {}).find("has no tokenizer.json: set data.tokenizer"), std::string::npos);
}

TEST(init, a_saved_config_starts_the_same_run) {
  const io::TempFolder tmp;
  make_base(tmp);
  tune(tmp, "first");
  RunConfig again;
  table_of(again).apply_toml(io::read_file(tmp / "first" / "config.toml"), "config.toml");
  again.output = tmp / "again";
  run(again, {});
  expect_same_run(tmp / "first", tmp / "again", "step_00000006");
}

}  // namespace
}  // namespace hpcdl::train

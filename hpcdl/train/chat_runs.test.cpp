// Runs on conversations.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "hpcdl/data/chat_for_tests.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/runs_for_tests.h"
#include "hpcdl/train/train_for_tests.h"

namespace hpcdl::train {
namespace {

namespace fs = std::filesystem;

using Change = std::function<void(RunConfig&)>;

struct ChatRuns : ::testing::Test {
  ChatRuns() {
    io::ModelConfig c;
    c.family = io::Family::llama;
    c.layers = 2, c.heads = 2, c.width = 32, c.context = 96, c.vocab = 259, c.tied = false;
    models::resolve(c);
    models::LanguageModel::create(c, 3, false).save(tmp / "base");
    data::chat_tokenizer().save_folder(tmp / "base", 96);
    io::write_file_atomic(tmp / "base" / "chat_template.jinja", data::kChatTemplate);
    std::string lines;
    for (int i = 0; i < 24; ++i)
      lines += io::Json{{"messages",
                         {{{"role", "user"}, {"content", std::string(static_cast<std::size_t>(i % 7), 'a')}},
                          {{"role", "assistant"}, {"content", "Answer " + std::to_string(i % 3)}}}}}
                   .dump() +
               "\n";
    io::write_file_atomic(tmp / "chats.jsonl", lines);
  }

  RunSummary tune(const std::string& name, const Change& change = {}, int ranks = 1, std::string* said = nullptr) {
    std::vector<RunSummary> all(static_cast<std::size_t>(ranks));
    testing::run_ranks(ranks, [&](const comm::Group& world) {
      RunConfig c;
      c.init = (tmp / "base").string();
      c.data.chat = {(tmp / "chats.jsonl").string()}, c.data.val_fraction = 0.25;
      c.train.steps = 12, c.train.batch = 6 / ranks, c.train.lr = 1e-2, c.train.threads = 1;
      c.train.eval_every = 6, c.checkpoint.keep = 0;
      c.output = tmp / name;
      if (change) change(c);
      Hooks hooks;
      hooks.world = world;
      if (said) hooks.console.line = [&](std::string_view line) { *said += std::string(line) + "\n"; };
      all[static_cast<std::size_t>(world.rank())] = run(c, hooks);
    });
    return all[0];
  }
  io::TempFolder tmp;
};

TEST_F(ChatRuns, answers_are_learned_and_files_of_the_model_are_kept) {
  std::string said;
  const auto done = tune("run", {}, 1, &said);
  EXPECT_NE(said.find("24 conversations, "), std::string::npos) << said;
  EXPECT_LT(done.eval_loss, 4);
  EXPECT_EQ(done.eval_tokens, 6 * 10) << "\"Answer N\", its end, and a new line";
  for (const char* file : {"tokenizer.json", "chat_template.jinja", "config.json"})
    expect_same_file(tmp / "base" / file, tmp / "run" / "model" / file);
}

/// Of short conversations one rank has most of the targets.
TEST_F(ChatRuns, ranks_that_share_rows_learn_what_one_rank_learns) {
  const auto one = tune("one");
  const auto two = tune("two", [](RunConfig& c) { c.train.batch = 6, c.parallel.cp = 2; }, 2);
  EXPECT_NEAR(two.eval_loss, one.eval_loss, 1e-5 * one.eval_loss);
  EXPECT_EQ(two.eval_tokens, one.eval_tokens);
  EXPECT_LT(weights_apart(tmp / "one/model", tmp / "two/model"), 1e-5);
}

TEST_F(ChatRuns, rows_are_no_longer_than_the_longest_conversation) {
  tune("run");
  const auto toml = io::read_file(tmp / "run" / "config.toml");
  EXPECT_NE(toml.find("\nlength = 48\n"), std::string::npos) << toml;
  std::string said;
  tune("short", [](RunConfig& c) { c.train.length = 32; }, 1, &said);
  EXPECT_NE(said.find("of 24 conversations are longer than 32 tokens (the longest has 35) and were cut"),
            std::string::npos)
      << said;
}

TEST_F(ChatRuns, packed_conversations_are_evaluated_as_alone) {
  std::string said;
  const auto change = [](RunConfig& c) { c.train.steps = 1, c.train.lr = 1e-9, c.train.eval_every = 1; };
  const auto alone = tune("alone", change);
  const auto packed = tune(
      "packed",
      [&](RunConfig& c) {
        change(c);
        c.data.packing = true, c.train.batch = 2;
      },
      1, &said);
  EXPECT_NE(said.find("24 conversations in 8 rows"), std::string::npos) << said;
  EXPECT_EQ(packed.eval_tokens, alone.eval_tokens);
  EXPECT_NEAR(packed.eval_loss, alone.eval_loss, 1e-6 * alone.eval_loss);
}

TEST_F(ChatRuns, packed_runs_resume_and_are_divided_among_ranks) {
  const auto packing = [](RunConfig& c) { c.data.packing = true, c.train.batch = 2; };
  const auto whole = tune("whole", packing);
  tune("half", [&](RunConfig& c) { packing(c), c.checkpoint.every = 5; });
  for (const char* later : {"step_00000012", "step_00000010"}) fs::remove_all(tmp / "half" / "checkpoints" / later);
  EXPECT_EQ(tune("half", packing).first_step, 5);
  expect_same_file(tmp / "whole/model/model.safetensors", tmp / "half/model/model.safetensors");
  const auto two = tune("two", [&](RunConfig& c) { packing(c), c.train.batch = 1; }, 2);
  EXPECT_NEAR(two.eval_loss, whole.eval_loss, 1e-5 * whole.eval_loss);
  const auto tp = tune("tp", [&](RunConfig& c) { packing(c), c.parallel.tp = 2; }, 2);
  EXPECT_NEAR(tp.eval_loss, whole.eval_loss, 1e-5 * whole.eval_loss);
}

TEST_F(ChatRuns, a_stopped_run_goes_on_as_if_it_had_not_been) {
  tune("whole");
  tune("half", [](RunConfig& c) { c.checkpoint.every = 5; });
  fs::remove_all(tmp / "half" / "checkpoints" / "step_00000012");
  fs::remove_all(tmp / "half" / "checkpoints" / "step_00000010");
  EXPECT_EQ(tune("half").first_step, 5);
  expect_same_file(tmp / "whole" / "model" / "model.safetensors", tmp / "half" / "model" / "model.safetensors");
}

/// The targets of a micro-batch are few, and their number differs; the weights come from a folder.
TEST_F(ChatRuns, ranks_of_a_pipeline_divide_the_vocabulary) {
  const auto change = [](RunConfig& c) {
    c.train.batch = 3, c.train.accumulate = 2;
    c.train.eps = 1e-5;  // rounding errors must not become full steps
  };
  const auto alone = tune("one", change);
  for (const int barriers : {1, 2}) {
    const auto name = "two" + std::to_string(barriers);
    const auto two = tune(
        name,
        [&](RunConfig& c) {
          change(c);
          c.parallel.pp = 2, c.parallel.vocabulary = VocabularyPlace::pipeline, c.parallel.barriers = barriers;
        },
        2);
    EXPECT_NEAR(two.loss, alone.loss, 1e-5 * alone.loss) << barriers;
    EXPECT_NEAR(two.eval_loss, alone.eval_loss, 1e-5 * alone.eval_loss) << barriers;
    EXPECT_EQ(two.eval_tokens, alone.eval_tokens);
    EXPECT_LT(weights_apart(tmp / name / "model", tmp / "one" / "model"), 1e-5) << barriers;
  }
}

TEST_F(ChatRuns, ranks_train_what_one_rank_trains) {
  const auto alone = tune("one");
  for (const int n : {2, 3}) {
    const auto many = tune("many" + std::to_string(n), {}, n);
    EXPECT_NEAR(many.loss, alone.loss, 1e-5 * alone.loss) << n;
    EXPECT_NEAR(many.eval_loss, alone.eval_loss, 1e-5 * alone.eval_loss) << n;
    EXPECT_EQ(many.eval_tokens, alone.eval_tokens) << n;
  }
}

TEST_F(ChatRuns, what_is_missing_is_named) {
  const auto refused = [&](const Change& change) { return error_of([&] { tune("refused", change); }); };
  EXPECT_NE(refused([](RunConfig& c) { c.data.text = {"x"}; }).find("data.text and data.chat exclude each other"),
            std::string::npos);
  EXPECT_NE(refused([](RunConfig& c) { c.init = ""; }).find("set model.init, or data.tokenizer"), std::string::npos);
  EXPECT_NE(refused([](RunConfig& c) { c.data.val_fraction = 0.9, c.data.chat = {}; }).find("no text to train on"),
            std::string::npos);
  const auto packed = [](const Change& change) { return [change](RunConfig& c) { c.data.packing = true, change(c); }; };
  EXPECT_NE(refused(packed([](RunConfig& c) { c.parallel.cp = 2; })).find("not tested with parallel.cp = 2"),
            std::string::npos);
  fs::rename(tmp / "base" / "chat_template.jinja", tmp / "template");
  EXPECT_NE(refused({}).find("has no chat template: set data.template to a file that holds one"), std::string::npos);
  EXPECT_EQ(refused([&](RunConfig& c) { c.data.chat_template = (tmp / "template").string(); }), "no error");
}

}  // namespace
}  // namespace hpcdl::train

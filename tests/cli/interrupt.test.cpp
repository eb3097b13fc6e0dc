// Ctrl-C at any time: training is saved, no half-written files remain, and no error is reported.

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "hpcdl/models/family.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/train/runs_for_tests.h"
#include "hpcdl/train/stop.h"
#include "hpcdl/train/train_for_tests.h"
#include "tests/cli/program.h"

namespace hpcdl::cli_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr int kInterrupted = 128 + SIGINT;

bool comes_true(const std::function<bool()>& condition) {
  for (const auto end = std::chrono::steady_clock::now() + 120s; std::chrono::steady_clock::now() < end;
       std::this_thread::sleep_for(2ms))
    if (condition()) return true;
  return false;
}

std::vector<std::string> half_written(const fs::path& folder) {
  std::vector<std::string> list;
  for (const auto& path : io::list_folder(folder, true))
    if (path.filename().string().starts_with(".tmp-")) list.push_back(path.string());
  return list;
}

struct Interrupt : testing::Test {
  Interrupt() {
    ::setenv("XDG_CACHE_HOME", path("home").c_str(), 1);
    io::write_file_atomic(tmp / "toy.txt", train::toy_text());
  }
  std::string path(const std::string& name) const { return (tmp / name).string(); }
  std::vector<std::string> train_words(const std::string& out, int steps) const {
    return {"train",
            "--data.text=" + path("toy.txt"),
            "--data.vocab_size=300",
            "--model.layers=2",
            "--model.heads=2",
            "--model.width=32",
            "--model.context=32",
            "--train.batch=2",
            "--train.threads=1",
            "--train.eval_every=50",
            "--train.eval_batches=2",
            "--train.steps=" + std::to_string(steps),
            "--checkpoint.keep=0",
            "--out",
            path(out)};
  }
  /// Waits for the first steps.
  bool trains(const std::string& out) const {
    return comes_true([&] {
      std::error_code none;
      return fs::file_size(path(out + "/metrics.jsonl"), none) > 500 && !none;
    });
  }
  /// Ends the program by Ctrl-C once `begun` holds, and expects it to leave `folder` clean and report no error.
  void expect_clean(const std::vector<std::string>& words, const std::function<bool()>& begun) {
    Program program(words);
    ASSERT_TRUE(comes_true(begun)) << program.said();
    ::kill(program.pid(), SIGINT);
    const auto r = program.wait();
    EXPECT_EQ(r.code, kInterrupted) << words[0] << ": " << r.err;
    EXPECT_EQ(r.err.find("hpcdl: ["), std::string::npos) << r.err;
    EXPECT_EQ(half_written(tmp.path()), std::vector<std::string>{}) << words[0];
  }
  io::TempFolder tmp;
};

TEST_F(Interrupt, training_is_saved_and_the_command_that_it_says_goes_on_to_the_same_bytes) {
  constexpr int kSteps = 3000;
  ASSERT_EQ(run(train_words("whole", kSteps)).code, 0);
  Program program(train_words("r", kSteps));
  ASSERT_TRUE(trains("r")) << program.said();
  ::kill(program.pid(), SIGINT);
  const auto r = program.wait();
  ASSERT_EQ(r.code, kInterrupted) << r.err;
  EXPECT_NE(r.err.find("interrupted: the run will save and end after this step"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("interrupted: saved step "), std::string::npos) << r.err;
  EXPECT_NE(r.err.find(" of 3000; to continue from there:\n  "), std::string::npos) << r.err;
  EXPECT_NE(r.err.find(" train --data.text=" + path("toy.txt")), std::string::npos) << r.err;
  EXPECT_FALSE(fs::exists(path("r/model")));
  EXPECT_EQ(half_written(tmp.path()), std::vector<std::string>{});
  ASSERT_EQ(run(train_words("r", kSteps)).code, 0);
  train::expect_same_run(tmp / "whole", tmp / "r", "step_00003000");
}

TEST_F(Interrupt, all_ranks_save_the_same_step) {
  const auto words = [&](const std::string& out) {
    auto all = train_words(out, 2000);
    all.insert(all.begin(), {"launch", "-n", "2", "--"});
    return all;
  };
  ASSERT_EQ(run(words("whole")).code, 0);
  Program program(words("r"));
  ASSERT_TRUE(trains("r")) << program.said();
  ::kill(program.pid(), SIGINT);
  const auto r = program.wait();
  ASSERT_EQ(r.code, kInterrupted) << r.err;
  EXPECT_NE(r.err.find("[rank 0] interrupted: saved step "), std::string::npos) << r.err;
  EXPECT_EQ(r.err.find("[rank 1] interrupted"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("to continue from there:\n  "), std::string::npos) << r.err;
  EXPECT_NE(r.err.find(" launch -n 2 -- train "), std::string::npos) << r.err;
  ASSERT_EQ(run(words("r")).code, 0);
  train::expect_same_file(tmp / "whole/model/model.safetensors", tmp / "r/model/model.safetensors");
  EXPECT_EQ(train::timeless_metrics(tmp / "whole"), train::timeless_metrics(tmp / "r"));
}

/// A step that takes hours: only the second signal ends it.
TEST_F(Interrupt, the_second_one_ends_training_at_once) {
  auto words = train_words("r", 2);
  words.push_back("--train.accumulate=100000");
  Program program(words);
  ASSERT_TRUE(comes_true([&] { return program.said().find("activations planned") != std::string::npos; }));
  std::this_thread::sleep_for(500ms);  // time until the first step
  ::kill(program.pid(), SIGINT);
  ASSERT_TRUE(comes_true([&] {
    return program.said().find("press Ctrl-C again to end it at once") != std::string::npos;
  })) << program.said();
  std::this_thread::sleep_for(train::kSameAsking + 200ms);
  ::kill(program.pid(), SIGINT);
  const auto r = program.wait();
  EXPECT_EQ(r.code, kInterrupted) << r.err;
  EXPECT_EQ(r.err.find("saved"), std::string::npos) << r.err;
  EXPECT_EQ(half_written(tmp.path()), std::vector<std::string>{});
}

TEST_F(Interrupt, nothing_half_written_stays) {
  io::ModelConfig m;
  m.family = io::Family::llama;
  m.layers = 6, m.heads = 8, m.width = 512, m.context = 64, m.vocab = 4096;
  models::resolve(m);
  fs::create_directory(tmp / "model");
  models::LanguageModel::create(m, 1, false).save(tmp / "model");
  models::write_hf_config(tmp / "model", m);
  const auto there = [&](const std::string& name) { return [this, name] { return fs::exists(tmp / name); }; };
  expect_clean({"quantize", "--model", path("model"), "--out", path("q")}, there(".tmp-q"));
  EXPECT_FALSE(fs::exists(tmp / "q"));
  expect_clean({"probe", "--out", path("probe.json"), "--no-disk"}, there(".tmp-probe.json"));
  std::string text = train::toy_text();
  while (text.size() < (std::size_t{16} << 20)) text += text;
  io::write_file_atomic(tmp / "long.txt", text);
  ASSERT_EQ(run({"tokenize", "--train", "--vocab", "300", "--out", path("t.json"), path("toy.txt")}).code, 0);
  expect_clean({"tokenize", "--tokenizer", path("t.json"), "--out", path("s.bin"), path("long.txt")},
               there(".tmp-s.bin"));
  // The cache of a run's text is also filled in a temporary folder with its own name.
  const auto cache_grows = [&] {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(tmp / "cache", none))
      if (entry.is_directory() && entry.path().filename().string().starts_with(".text-")) return true;
    return false;
  };
  expect_clean({"train", "--data.text=" + path("long.txt"), "--data.cache=" + path("cache"), "--out", path("r")},
               cache_grows);
  EXPECT_FALSE(cache_grows());
}

TEST_F(Interrupt, other_verbs_end_without_a_word) {
  io::ModelConfig m;
  m.family = io::Family::llama;
  m.layers = 2, m.heads = 2, m.width = 64, m.context = 1 << 14, m.vocab = 300;
  models::resolve(m);
  fs::create_directory(tmp / "model");
  models::LanguageModel::create(m, 1, false).save(tmp / "model");
  models::write_hf_config(tmp / "model", m);
  const auto soon = [] { return std::this_thread::sleep_for(700ms), true; };
  expect_clean({"generate", "--model", path("model"), "--prompt-ids", "1", "--tokens", "16000", "--ignore-eos"}, soon);
  expect_clean({"bench", "softmax", "--seconds", "60"}, soon);
  expect_clean({"demo", "--out", path("demo"), "--minutes", "10"}, soon);
}

}  // namespace
}  // namespace hpcdl::cli_test

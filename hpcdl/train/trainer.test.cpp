#include "hpcdl/train/trainer.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "hpcdl/io/json.h"
#include "hpcdl/train/runs_for_tests.h"
#include "hpcdl/train/stop.h"
#include "hpcdl/train/train_for_tests.h"

namespace hpcdl::train {
namespace {

namespace fs = std::filesystem;

class Trainer : public testing::TestWithParam<std::string> {};

/// N steps equal k steps, a signal, and N - k steps: weights, optimizer and metrics, to the byte.
TEST_P(Trainer, a_stopped_run_goes_on_as_if_it_had_not_been) {
  const io::TempFolder tmp;
  const auto configure = [&](RunConfig& c, const std::string& name) {
    toy_config(c, tmp, name);
    const auto has = [&](const char* word) { return GetParam().find(word) != std::string::npos; };
    if (has("dropout")) c.train.dropout = 0.1;
    if (has("accumulate")) c.train.accumulate = 3;
    if (has("bf16")) c.train.dtype = Compute::bf16;
    if (has("fp16")) c.train.dtype = Compute::fp16, c.train.growth_interval = 2, c.train.init_scale = 0x1p40;
    if (has("fp8")) c.train.dtype = has("cuda") ? Compute::fp8 : Compute::fp8_emu, c.model.layers = 3;
    if (has("gpt2")) c.model.family = io::Family::gpt2;
    if (has("cuda")) c.train.device = "cuda";
  };
  RunConfig whole;
  configure(whole, "whole");
  const auto done = run(whole, {});
  EXPECT_FALSE(done.stopped);
  EXPECT_EQ(done.step, 6);

  for (const int stop_at : {1, 4}) {
    const std::string name = "stopped" + std::to_string(stop_at);
    RunConfig first;
    configure(first, name);
    // By then a GPU has queued the passes of the next step and completes that step, unless the model is read between
    // the two, which happens every 2 steps.
    const int stops_behind = GetParam().starts_with("cuda") && stop_at % 2 != 0 ? stop_at + 1 : stop_at;
    const auto stopped = run(first, {.console = {}, .speed_of_light = {}, .after_step = [&](std::int64_t step) {
                                       if (step == stop_at) ::raise(SIGTERM);
                                     }});
    EXPECT_TRUE(stopped.stopped);
    EXPECT_EQ(stopped.step, stops_behind);
    EXPECT_FALSE(fs::exists(tmp.path() / name / "model"));
    RunConfig second;
    configure(second, name);
    const auto resumed = run(second, {});
    EXPECT_EQ(resumed.first_step, stops_behind);
    expect_same_run(tmp / "whole", tmp / name, "step_00000006");
  }
}
INSTANTIATE_TEST_SUITE_P(kinds, Trainer,
                         testing::Values("plain", "dropout", "accumulate", "bf16", "fp16_accumulate", "gpt2",
                                         "fp8_accumulate"));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Trainer);
INSTANTIATE_TEST_SUITE_P(gpu, Trainer,
                         testing::ValuesIn(cuda_devices() > 0
                                               ? std::vector<std::string>{"cuda_dropout", "cuda_bf16_accumulate",
                                                                          "cuda_gpt2_bf16", "cuda_fp16", "cuda_fp8",
                                                                          "cuda_gpt2_fp16_accumulate_dropout"}
                                               : std::vector<std::string>{}));

/// Ctrl-C stops a run that handles it like SIGTERM, and prints the command to continue; everything else is the same to
/// the byte.
TEST(trainer, an_interrupted_run_goes_on_as_if_it_had_not_been) {
  const io::TempFolder tmp;
  RunConfig whole, first, second;
  toy_config(whole, tmp, "whole");
  toy_config(first, tmp, "r");
  toy_config(second, tmp, "r");
  run(whole, {});
  std::string said;
  Hooks hooks;
  hooks.console.line = [&](std::string_view line) { said += std::string(line) + "\n"; };
  hooks.stops_on_interrupt = true;
  hooks.command = "hpcdl train -c a.toml";
  hooks.after_step = [](std::int64_t step) {
    if (step == 3) ::raise(SIGINT);
  };
  const auto stopped = run(first, hooks);
  EXPECT_TRUE(stopped.stopped && stopped.interrupted);
  EXPECT_EQ(stopped.step, 3);
  EXPECT_NE(said.find("interrupted: saved step 3 of 6; to continue from there:\n  hpcdl train -c a.toml\n"),
            std::string::npos)
      << said;
  const auto resumed = run(second, {});
  EXPECT_EQ(resumed.first_step, 3);
  EXPECT_FALSE(resumed.stopped || resumed.interrupted);
  expect_same_run(tmp / "whole", tmp / "r", "step_00000006");
}

/// A time so short that it has passed after each step, and one that never passes, so that the steps with saves are
/// certain.
TEST(trainer, checkpoints_are_written_by_time_too_and_change_no_bit) {
  EXPECT_EQ(CheckpointConfig().every, io::Every::time(600)) << "a lost run loses at most ten minutes";
  const io::TempFolder tmp;
  const auto saved = [&](const std::string& name, io::Every every) {
    RunConfig c;
    toy_config(c, tmp, name);
    c.train.dropout = 0.1, c.checkpoint.every = every;
    run(c, {});
    std::vector<std::string> steps;
    for (const auto& path : io::list_folder(tmp.path() / name / "checkpoints"))
      if (path.filename().string().starts_with("step_")) steps.push_back(path.filename().string().substr(12));
    return steps;
  };
  using Steps = std::vector<std::string>;
  EXPECT_EQ(saved("never", 0), Steps{"6"});
  EXPECT_EQ(saved("late", io::Every::time(1e6)), Steps{"6"});
  EXPECT_EQ(saved("steps", 4), (Steps{"4", "6"}));
  EXPECT_EQ(saved("often", io::Every::time(1e-9)), (Steps{"2", "3", "4", "5", "6"})) << "known a step ahead";
  for (const char* name : {"late", "steps", "often"}) expect_same_run(tmp / "never", tmp / name, "step_00000006");
}

/// Each checkpoint holds its step, although the run went on while it was written.
TEST(trainer, asynchronous_checkpoints_are_those_of_a_run_that_waits) {
  const io::TempFolder tmp;
  const auto saved = [&](const std::string& name, bool asynchronous) {
    RunConfig c;
    toy_config(c, tmp, name);
    c.checkpoint = {.every = 1, .keep = 0, .resume = "auto", .asynchronous = asynchronous};
    c.train.log_every = 1;
    run(c, {});
    std::int64_t stalls = 0;
    std::istringstream in(io::read_file(tmp.path() / name / "metrics.jsonl"));
    for (std::string line; std::getline(in, line);)
      stalls += io::parse_json(line, "metrics.jsonl").contains("save_stall_ms");
    EXPECT_GE(stalls, 4) << "metrics say how long the run waited";
  };
  saved("waits", false);
  saved("goes_on", true);
  for (int step = 1; step <= 6; ++step) {
    const auto name = fmt::format("checkpoints/step_{:08}", step);
    for (const char* file : {"model.safetensors", "optim-rank0.safetensors"})
      EXPECT_TRUE(io::read_file(tmp.path() / "waits" / name / file) ==
                  io::read_file(tmp.path() / "goes_on" / name / file))
          << name << "/" << file;
  }
}

TEST(trainer, an_asynchronous_checkpoint_that_cannot_be_written_ends_the_run) {
  const io::TempFolder tmp;
  RunConfig c;
  toy_config(c, tmp, "run");
  c.checkpoint.every = 2;
  c.train.steps = 1'000'000;
  const auto block = [&](std::int64_t step) {
    if (step == 1) fs::create_directories(tmp / "run/checkpoints/latest/occupied");
  };
  try {
    run(c, {.console = {}, .speed_of_light = {}, .after_step = block});
    ADD_FAILURE() << "the run did not end";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("latest"), std::string::npos) << e.what();
  }
}

/// Once, by the run that continues, in every case.
TEST(trainer, an_evaluation_left_out_is_made_up_for) {
  const io::TempFolder tmp;
  const auto go = [&](const std::string& name, const Hooks& hooks) {
    RunConfig c;
    toy_config(c, tmp, name);
    return run(c, hooks);
  };
  const auto expect_whole = [&](const std::string& name) {
    expect_same_run(tmp / "whole", tmp / name, "step_00000006");
    EXPECT_EQ(tensorboard_values(tmp / name, "validation_metrics/loss"), 3) << name;
  };
  const auto done = go("whole", {});
  for (const int stop_at : {4, 6}) {  // 6 is the last
    const auto name = "stopped" + std::to_string(stop_at);
    StopsBeforeEvaluation stops(stop_at);
    const auto stopped = go(name, watched_by(stops));
    EXPECT_TRUE(stopped.stopped);
    EXPECT_EQ(stopped.step, stop_at);
    EXPECT_EQ(tensorboard_values(tmp / name, "validation_metrics/loss"), stop_at / 2 - 1);
    const auto resumed = go(name, {});
    EXPECT_FALSE(resumed.stopped);
    EXPECT_EQ(resumed.eval_loss, done.eval_loss);
    expect_whole(name);
  }
  StopsBeforeEvaluation stops(4);
  go("unlucky", watched_by(stops));
  {
    const StopSignals again;
    ::raise(SIGTERM);
    const auto stopped = go("unlucky", {});
    EXPECT_TRUE(stopped.stopped);
    EXPECT_EQ(stopped.step, 4);
  }
  Hooks loses;
  loses.after_step = [](std::int64_t) { fail("test", "lost"); };
  EXPECT_EQ(error_of([&] { go("unlucky", loses); }), "[test] lost");
  go("unlucky", {});
  expect_whole("unlucky");
}

/// Its text may have been removed since.
TEST(trainer, an_evaluation_that_cannot_be_made_up_for_does_not_hold_up_the_run) {
  const io::TempFolder tmp;
  RunConfig first, second;
  toy_config(first, tmp, "r");
  toy_config(second, tmp, "r");
  StopsBeforeEvaluation stops(4);
  EXPECT_TRUE(run(first, watched_by(stops)).stopped);
  second.data.val_fraction = 0;
  const auto resumed = run(second, {});
  EXPECT_FALSE(resumed.stopped);
  EXPECT_EQ(resumed.first_step, 4);
  EXPECT_EQ(resumed.step, 6);
}

/// The loss of a step that overflowed is still valid; its gradients have no norm.
TEST(trainer, a_step_that_is_skipped_says_its_loss) {
  const io::TempFolder tmp;
  RunConfig c;
  toy_config(c, tmp, "r");
  c.train.dtype = Compute::fp16, c.train.init_scale = 0x1p40, c.train.steps = 3;
  run(c, {});
  std::istringstream lines(timeless_metrics(tmp / "r"));
  int skipped = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto j = io::parse_json(line, "metrics.jsonl");
    if (!j.contains("skipped_steps")) continue;
    ++skipped;
    EXPECT_EQ(j.at("skipped_steps"), skipped) << "every step is meant to overflow";
    EXPECT_NEAR(j.at("loss").get<double>(), std::log(300), 0.5) << line;
    EXPECT_FALSE(j.contains("grad_norm")) << line;
  }
  EXPECT_EQ(skipped, 3);
}

TEST(trainer, recompute_and_threads_change_no_bit) {
  const io::TempFolder tmp;
  RunConfig plain, recompute, one;
  toy_config(plain, tmp, "plain");
  toy_config(recompute, tmp, "recompute");
  toy_config(one, tmp, "one");
  for (auto* c : {&plain, &recompute, &one}) c->train.dropout = 0.1;
  recompute.train.recompute = true;
  one.train.threads = 1;
  const auto a = run(plain, {}), b = run(recompute, {});
  run(one, {});
  EXPECT_LT(b.arena_bytes, a.arena_bytes);
  expect_same_run(tmp / "plain", tmp / "recompute", "step_00000006");
  expect_same_run(tmp / "plain", tmp / "one", "step_00000006");
}

/// Runs the records one by one and counts the calls of the observer.
struct Counter : Observer {
  int steps = 0, stages[5] = {}, open = 0, runs = 0;
  void begin_step(std::int64_t step) override { EXPECT_EQ(step, steps); }
  void end_step(std::int64_t) override { ++steps; }
  void begin(Stage s) override { ++stages[static_cast<int>(s)], ++open; }
  void end(Stage) override { --open; }
  void run(const Instance& exe, Stream& s) override {
    EXPECT_EQ(open, 1);
    ++runs;
    exe.run(s, 0, static_cast<int>(exe.program().records.size()), [](int) {});
  }
};

TEST(trainer, being_watched_changes_no_bit) {
  const io::TempFolder tmp;
  RunConfig plain, watched, alone;
  toy_config(plain, tmp, "plain");
  toy_config(watched, tmp, "watched");
  toy_config(alone, tmp, "alone");
  for (auto* c : {&plain, &watched, &alone}) c->train.dropout = 0.1, c->train.accumulate = 2;
  const auto a = run(plain, {});
  Counter counter;
  run(watched, {.console = {}, .speed_of_light = {}, .after_step = {}, .observer = &counter});
  expect_same_run(tmp / "plain", tmp / "watched", "step_00000006");
  EXPECT_EQ(counter.steps, 6);
  EXPECT_EQ(counter.stages[static_cast<int>(Stage::data)], 12);
  EXPECT_EQ(counter.stages[static_cast<int>(Stage::pass)], 12);
  EXPECT_EQ(counter.stages[static_cast<int>(Stage::update)], 6);
  EXPECT_EQ(counter.stages[static_cast<int>(Stage::save)], 1);
  EXPECT_EQ(counter.runs, 18 + counter.stages[static_cast<int>(Stage::evaluate)]);
  EXPECT_EQ(counter.open, 0);
  const auto b = run(alone, {.console = {}, .speed_of_light = {}, .after_step = {}, .steps_only = true});
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_FALSE(fs::exists(tmp / "alone")) << "with steps_only nothing is written";
}

TEST(trainer, it_learns) {
  const io::TempFolder tmp;
  RunConfig c;
  toy_config(c, tmp, "learn");
  c.train.steps = 120;
  c.train.batch = 8;
  const auto s = run(c, {});
  // Starts at log(300) = 5.7. A word that follows another at random costs log(13) = 2.56, and some words are two
  // tokens, of which the second is certain.
  EXPECT_LT(s.loss, 2.5);
  EXPECT_LT(s.eval_loss, 2.5);
}

TEST(trainer, a_finished_run_says_so_and_a_longer_one_goes_on) {
  const io::TempFolder tmp;
  RunConfig c, again, longer;
  toy_config(c, tmp, "r");
  toy_config(again, tmp, "r");
  toy_config(longer, tmp, "r");
  run(c, {});
  const auto before = io::read_file(tmp / "r/metrics.jsonl");
  EXPECT_EQ(run(again, {}).first_step, 6);
  EXPECT_EQ(io::read_file(tmp / "r/metrics.jsonl"), before);
  longer.train.steps = 8;
  EXPECT_EQ(run(longer, {}).step, 8);
}

/// A quarter of the rate with base_batch samples instead of 12: the same factor of four, and with powers of two the
/// same bits.
TEST(trainer, the_learning_rate_follows_the_batch) {
  const io::TempFolder tmp;
  RunConfig plain, scaled;
  toy_config(plain, tmp, "plain");
  toy_config(scaled, tmp, "scaled");
  for (auto* c : {&plain, &scaled}) c->train.accumulate = 4, c->train.lr = 0x1p-9, c->train.min_lr = 0x1p-12;
  scaled.train.lr /= 4, scaled.train.min_lr /= 4;
  scaled.train.lr_scaling = LrScaling::linear, scaled.train.base_batch = 3;
  std::vector<std::string> said;
  run(plain, {});
  run(scaled, {.console = {[&](std::string_view line) { said.emplace_back(line); }, {}},
               .speed_of_light = {},
               .after_step = {}});
  expect_same_run(tmp / "plain", tmp / "scaled", "step_00000006");
  EXPECT_NE(said.at(0).find("x 4 = 0.00195 (linear scaling to 12 samples in a step)"), std::string::npos) << said.at(0);
}

TEST(trainer, a_warm_up_that_is_longer_than_the_run_is_reported) {
  const io::TempFolder tmp;
  for (const int warmup : {4, 40}) {
    RunConfig c;
    toy_config(c, tmp, std::to_string(warmup));
    c.train.steps = 4, c.train.warmup = warmup, c.train.lr = 1e-3;
    std::string said;
    run(c, {.console = {[&](std::string_view line) { said += line; }, {}}, .speed_of_light = {}, .after_step = {}});
    EXPECT_EQ(said.find("train.warmup = 40 is more than the 4 steps of the run, so the learning rate reaches only "
                        "0.0001 of 0.001") != std::string::npos,
              warmup == 40)
        << said;
  }
}

TEST(trainer, epochs_stand_for_steps) {
  const io::TempFolder tmp;
  RunConfig c;
  toy_config(c, tmp, "r");
  c.train.epochs = 2, c.train.batch = 128, c.train.eval_every = 0;
  std::vector<std::string> evaluations;
  const auto s = run(c, {.console = {[&](std::string_view line) {
                                       if (line.find("evaluation") != std::string_view::npos)
                                         evaluations.emplace_back(line);
                                     },
                                     {}},
                         .speed_of_light = {},
                         .after_step = {}});
  std::istringstream in(io::read_file(c.output / "metrics.jsonl"));
  double epoch = 0;
  for (std::string line; std::getline(in, line);) epoch = io::parse_json(line, "metrics.jsonl").value("epoch", epoch);
  EXPECT_GE(epoch, 2) << "the last step may reach into the third";
  EXPECT_LT(epoch, 2 + 2.0 / static_cast<double>(s.step)) << "in steps of two epochs";
  EXPECT_EQ(evaluations.size(), 2u) << "after each epoch";
}

TEST(trainer, another_model_does_not_resume) {
  const io::TempFolder tmp;
  RunConfig c, other, seed;
  toy_config(c, tmp, "r");
  toy_config(other, tmp, "r");
  toy_config(seed, tmp, "r");
  run(c, {});
  const auto config = io::read_file(tmp / "r/config.toml");
  other.model.heads = 4;  // the same shapes
  EXPECT_NE(error_of([&] { run(other, {}); }).find("another model"), std::string::npos);
  EXPECT_EQ(io::read_file(tmp / "r/config.toml"), config) << "must stay that of the existing run";
  seed.train.seed = 9;
  EXPECT_NE(error_of([&] { run(seed, {}); }).find("seed"), std::string::npos);
}

// Otherwise learned ids would stand for different words.
TEST(trainer, a_run_keeps_its_tokenizer_when_its_text_changes) {
  const io::TempFolder tmp;
  RunConfig c;
  toy_config(c, tmp, "r");
  run(c, {});
  const auto tokenizer = io::read_file(tmp / "r/model/tokenizer.json");
  std::string more = toy_text();
  for (int i = 0; i < 3000; ++i) more += "zebras quietly ";
  io::write_file_atomic(tmp / "more.txt", more);
  const auto go_on = [&](const std::string& other_tokenizer) {
    RunConfig longer;
    toy_config(longer, tmp, "r");
    longer.data.text.push_back((tmp / "more.txt").string());
    longer.data.tokenizer = other_tokenizer;
    longer.train.steps = 8;
    run(longer, {});
  };
  RunConfig fresh;
  toy_config(fresh, tmp, "fresh");
  fresh.data.text.push_back((tmp / "more.txt").string());
  run(fresh, {});
  ASSERT_NE(io::read_file(tmp / "fresh/model/tokenizer.json"), tokenizer);
  EXPECT_NE(error_of([&] { go_on(tmp / "fresh/model"); }).find("another tokenizer"), std::string::npos);
  go_on("");
  EXPECT_EQ(io::read_file(tmp / "r/model/tokenizer.json"), tokenizer);
}

TEST(trainer, without_a_writable_cache_it_caches_next_to_the_run) {
  const io::TempFolder tmp;
  RunConfig c;
  toy_config(c, tmp, "r");
  c.data.cache.clear();
  ::setenv("XDG_CACHE_HOME", "/proc/none", 1);
  run(c, {});
  ::unsetenv("XDG_CACHE_HOME");
  EXPECT_FALSE(fs::is_empty(tmp / "r/cache"));
}

TEST(trainer, a_loss_that_is_not_finite_names_step_and_tensor) {
  const io::TempFolder tmp;
  RunConfig c;
  toy_config(c, tmp, "r");
  c.train.lr = 1e3, c.train.warmup = 0, c.train.weight_decay = 100, c.train.clip = 0, c.train.steps = 60;
  const auto error = error_of([&] { run(c, {}); });
  EXPECT_NE(error.find("not finite"), std::string::npos) << error;
  EXPECT_NE(error.find("step "), std::string::npos) << error;
  EXPECT_NE(error.find(", in windows "), std::string::npos) << error;
  EXPECT_NE(error.find("first bad tensor"), std::string::npos) << error;
}

/// In f16 at the minimum of the scale, gradients beyond 65504 end the run; the record that produced them is named.
TEST(trainer, a_scale_that_can_fall_no_further_names_the_record) {
  const io::TempFolder tmp;
  for (const char* device : {"cpu", "cuda"}) {
    if (device == std::string("cuda") && cuda_devices() == 0) continue;
    RunConfig c;
    toy_config(c, tmp, device);
    c.train.device = device, c.train.dtype = Compute::fp16, c.train.init_scale = c.train.min_scale = 0x1p60;
    const auto error = error_of([&] { run(c, {}); });
    EXPECT_NE(error.find("step 1: the gradient norm is not finite"), std::string::npos) << error;
    EXPECT_NE(error.find("first bad tensor is record"), std::string::npos) << error;
    EXPECT_NE(error.find("backward"), std::string::npos) << error;
  }
}

TEST(trainer, mistakes_are_reported_before_the_work) {
  const io::TempFolder tmp;
  RunConfig no_text, no_output, small_vocab;
  toy_config(no_text, tmp, "a");
  no_text.data.text.clear();
  EXPECT_NE(error_of([&] { run(no_text, {}); }).find("data.text"), std::string::npos);
  toy_config(no_output, tmp, "b");
  no_output.output.clear();
  EXPECT_NE(error_of([&] { run(no_output, {}); }).find("--out"), std::string::npos);
  toy_config(small_vocab, tmp, "c");
  small_vocab.model.vocab = 100;
  EXPECT_NE(error_of([&] { run(small_vocab, {}); }).find("vocab is 100"), std::string::npos);
}

}  // namespace
}  // namespace hpcdl::train

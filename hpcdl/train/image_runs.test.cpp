// Runs on images.

#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "hpcdl/data/images/image_loader.h"
#include "hpcdl/infer/evaluate_images.h"
#include "hpcdl/models/family.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/runs_for_tests.h"
#include "hpcdl/train/train_for_tests.h"

namespace hpcdl::train {
namespace {

/// Some steps of a small network: the second epoch begins in step 5.
void image_config(RunConfig& c, const io::TempFolder& tmp, const std::string& name) {
  c.model.family = io::Family::simple_cnn;
  c.image.width = 4;
  c.data.procedural = 36;
  c.train.steps = 6, c.train.batch = 8, c.train.lr = 3e-3, c.train.warmup = 2, c.train.eval_every = 2;
  c.train.threads = 2;
  c.checkpoint.keep = 0;
  c.output = tmp / name;
}

class ImageRun : public ::testing::TestWithParam<std::string> {
 protected:
  void configure(RunConfig& c, const io::TempFolder& tmp, const std::string& name) const {
    image_config(c, tmp, name);
    const auto has = [&](const char* word) { return GetParam().find(word) != std::string::npos; };
    if (has("sgd")) c.train.optimizer = OptimizerKind::sgd, c.train.nesterov = true, c.train.lr = 0.01;
    if (has("mixup")) c.data.mixup = 0.4;
    if (has("smooth")) c.train.label_smoothing = 0.1;
    if (has("accumulate")) c.train.accumulate = 2, c.train.batch = 4;
    if (has("bf16")) c.train.dtype = Compute::bf16;
    if (has("resnet")) c.model.family = io::Family::resnet18;
    if (has("cuda")) c.train.device = "cuda";
  }
};

TEST_P(ImageRun, a_stopped_run_goes_on_as_if_it_had_not_been) {
  const io::TempFolder tmp;
  RunConfig whole, first, second;
  configure(whole, tmp, "whole");
  configure(first, tmp, "stopped");
  configure(second, tmp, "stopped");
  const auto done = run(whole, {});
  EXPECT_TRUE(done.images);
  EXPECT_GE(done.eval_accuracy, 0);
  const auto stopped = run(first, {.console = {}, .speed_of_light = {}, .after_step = [](std::int64_t step) {
                                     if (step == 3) ::raise(SIGTERM);
                                   }});
  EXPECT_TRUE(stopped.stopped);
  const auto resumed = run(second, {});
  EXPECT_EQ(stopped.step, whole.train.device == "cuda" ? 4 : 3) << "a GPU is already working on the next step";
  EXPECT_EQ(resumed.first_step, stopped.step);
  EXPECT_EQ(resumed.accuracy, done.accuracy) << "over the whole epoch";
  expect_same_run(tmp / "whole", tmp / "stopped", "step_00000006");
}

/// 36 images are four and a half batches: epochs end in the middle of one.
TEST(image_run, an_evaluation_left_out_at_the_end_of_an_epoch_is_made_up_for) {
  const io::TempFolder tmp;
  const auto go = [&](const std::string& name, const Hooks& hooks) {
    RunConfig c;
    image_config(c, tmp, name);
    c.train.epochs = 3, c.train.eval_every = 0, c.train.log_every = 4;
    return run(c, hooks);
  };
  const auto done = go("whole", {});
  std::vector<std::int64_t> ends;
  std::istringstream lines(timeless_metrics(tmp / "whole"));
  for (std::string line; std::getline(lines, line);)
    if (const auto j = io::parse_json(line, "metrics.jsonl"); j.contains("train_accuracy"))
      ends.push_back(j.at("step"));
  ASSERT_EQ(ends.size(), 3u);
  for (const auto stop_at : ends) {
    const auto name = "stopped" + std::to_string(stop_at);
    StopsBeforeEvaluation stops(stop_at);
    EXPECT_TRUE(go(name, watched_by(stops)).stopped);
    const auto resumed = go(name, {});
    EXPECT_EQ(resumed.accuracy, done.accuracy) << "over the last epoch";
    EXPECT_EQ(timeless_metrics(tmp / name), timeless_metrics(tmp / "whole"));
  }
}

/// 5 steps of 8 images, then steps of a different size for the 32 images that remain of two epochs.
TEST(image_run, epochs_end_where_they_do_though_steps_change_their_size) {
  const io::TempFolder tmp;
  for (const auto& [batch, last_step] : {std::pair(8, 9), std::pair(4, 13), std::pair(16, 7)}) {
    const auto name = "batch" + std::to_string(batch);
    RunConfig first, second;
    for (auto* c : {&first, &second}) {
      image_config(*c, tmp, name);
      c->train.epochs = 2, c->train.eval_every = 0;
    }
    second.train.batch = batch;
    run(first, {.console = {}, .speed_of_light = {}, .after_step = [](std::int64_t step) {
                  if (step == 5) ::raise(SIGTERM);
                }});
    const auto resumed = run(second, {});
    EXPECT_EQ(resumed.first_step, 5) << name;
    EXPECT_EQ(resumed.step, last_step) << name;
    double epoch = 0;
    std::istringstream lines(timeless_metrics(tmp / name));
    for (std::string line; std::getline(lines, line);)
      epoch = io::parse_json(line, "metrics.jsonl").value("epoch", epoch);
    EXPECT_EQ(epoch, 2) << name;
  }
}

/// The thread that makes the batches, the number of compute threads, and recomputation of activations do not change a
/// bit, and running statistics are updated once.
TEST_P(ImageRun, workers_threads_and_recompute_change_no_bit) {
  const io::TempFolder tmp;
  RunConfig plain, other;
  configure(plain, tmp, "plain");
  configure(other, tmp, "other");
  other.data.workers = 0, other.data.prefetch = 1;
  other.train.threads = 1, other.train.recompute = true;
  const auto a = run(plain, {}), b = run(other, {});
  EXPECT_LT(b.arena_bytes, a.arena_bytes);
  expect_same_run(tmp / "plain", tmp / "other", "step_00000006");
}
INSTANTIATE_TEST_SUITE_P(kinds, ImageRun,
                         ::testing::Values("plain", "sgd_mixup_smooth", "resnet_sgd_accumulate", "bf16"));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ImageRun);
INSTANTIATE_TEST_SUITE_P(gpu, ImageRun,
                         ::testing::ValuesIn(cuda_devices() > 0
                                                 ? std::vector<std::string>{"cuda_sgd_mixup_smooth",
                                                                            "cuda_resnet_accumulate_bf16"}
                                                 : std::vector<std::string>{}));

TEST(image_run, it_learns_and_says_how_well) {
  const io::TempFolder tmp;
  RunConfig c;
  image_config(c, tmp, "learn");
  c.image.width = 8;
  c.data.procedural = 512;
  c.train.epochs = 4, c.train.batch = 16, c.train.eval_every = 0, c.train.log_every = 8;
  const auto s = run(c, {});
  EXPECT_EQ(s.step, 128);
  EXPECT_GT(s.accuracy, 0.3) << "chance level is 0.1";
  EXPECT_GT(s.eval_accuracy, 0.3);
  std::istringstream in(io::read_file(c.output / "metrics.jsonl"));
  int evaluations = 0;
  for (std::string line; std::getline(in, line);) {
    const auto j = io::parse_json(line, "metrics.jsonl");
    if (!j.contains("eval_accuracy")) {
      for (const char* key : {"accuracy", "epoch", "samples", "samples_per_second", "data_wait_percent"})
        EXPECT_TRUE(j.contains(key)) << line;
      continue;
    }
    ++evaluations;
    EXPECT_EQ(j.at("epoch").get<double>(), evaluations);
    EXPECT_EQ(j.at("eval_samples").get<int>(), 102);
    EXPECT_TRUE(j.contains("train_accuracy")) << line;
  }
  EXPECT_EQ(evaluations, 4);
}

/// Running statistics differ between ranks; checkpoints and evaluations use those of the first.
TEST(image_run, ranks_stop_and_go_on_to_the_same_bits) {
  const io::TempFolder tmp;
  const auto train_on = [&](const std::string& name, bool stop) {
    testing::run_ranks(2, [&](const comm::Group& world) {
      RunConfig c;
      image_config(c, tmp, name);
      c.train.batch = 4, c.train.threads = 1;
      Hooks hooks;
      hooks.world = world;
      if (stop && world.rank() == 1)
        hooks.after_step = [](std::int64_t step) {
          if (step == 3) ::raise(SIGTERM);
        };
      run(c, hooks);
    });
  };
  train_on("whole", false);
  train_on("stopped", true);
  train_on("stopped", false);
  expect_same_file(tmp / "whole/model/model.safetensors", tmp / "stopped/model/model.safetensors");
  EXPECT_EQ(timeless_metrics(tmp / "whole"), timeless_metrics(tmp / "stopped"));
}

/// Two ranks with halves of the batch give the same results as one with the whole batch, up to rounding errors: f32,
/// sums of at most 8192 numbers, five consecutive steps. Norms over halves would differ far more.
TEST(image_run, synchronised_batch_norms_see_the_whole_batch) {
  const io::TempFolder tmp;
  for (const auto family : {io::Family::simple_cnn, io::Family::resnet18}) {
    const auto losses_on = [&](int ranks, bool sync, bool recompute) {
      const auto name = fmt::format("{}-{}-{}-{}", io::enum_name(family), ranks, sync, recompute);
      const auto one = [&](const comm::Group& world) {
        RunConfig c;
        image_config(c, tmp, name);
        c.model.family = family;
        c.train.optimizer = OptimizerKind::sgd, c.train.lr = 0.02, c.train.eval_every = 0;
        c.train.batch = 8 / ranks, c.train.threads = 1, c.train.recompute = recompute;
        c.sync_batch_norm = sync;
        run(c, {.console = {}, .world = world, .speed_of_light = {}, .after_step = {}});
      };
      if (ranks == 1) one({});
      else testing::run_ranks(ranks, one);
      std::istringstream in(io::read_file(tmp / name / "metrics.jsonl"));
      std::vector<double> list;
      for (std::string line; std::getline(in, line);) {
        const auto j = io::parse_json(line, "metrics.jsonl");
        list.push_back(j.at(j.contains("eval_loss") ? "eval_loss" : "loss").get<double>());
      }
      return list;
    };
    const auto apart = [](const std::vector<double>& a, const std::vector<double>& b) {
      EXPECT_EQ(a.size(), b.size());
      double most = 0;
      for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::fabs(a[i] / b[i] - 1));
      return most;
    };
    const auto whole = losses_on(1, false, false), halves = losses_on(2, true, false);
    EXPECT_EQ(whole.size(), 7u) << "six steps and one evaluation with running statistics";
    EXPECT_LT(apart(halves, whole), 1e-4);
    EXPECT_GT(apart(losses_on(2, false, false), whole), 1e-2) << "the bound above would not detect the difference";
    EXPECT_EQ(losses_on(2, true, true), halves) << "recomputation changes the losses";
    EXPECT_EQ(losses_on(1, true, false), whole) << "a single rank must not depend on others";
  }
}

TEST(image_run, a_loss_that_is_not_finite_names_the_samples) {
  const io::TempFolder tmp;
  RunConfig c;
  image_config(c, tmp, "r");
  c.train.lr = 1e30, c.train.warmup = 0, c.train.clip = 0;
  const auto error = error_of([&] { run(c, {}); });
  EXPECT_NE(error.find("not finite; the first bad tensor is"), std::string::npos) << error;
  EXPECT_NE(error.find(", in samples "), std::string::npos) << error;
  EXPECT_NE(error.find(" of procedural"), std::string::npos) << error;
}

void gpu_config(RunConfig& c, const io::TempFolder& tmp, const std::string& name, const std::string& kind) {
  image_config(c, tmp, name);
  const auto has = [&](const char* word) { return kind.find(word) != std::string::npos; };
  c.train.device = "cuda";
  c.train.steps = 24, c.train.eval_every = 0, c.train.optimizer = OptimizerKind::sgd, c.train.lr = 0.02;
  if (has("fp16"))
    c.train.dtype = Compute::fp16, c.train.init_scale = 0x1p40,
    c.train.growth_interval = 4;  // several overflows at first, and later
  if (has("accumulate")) c.train.accumulate = 3, c.train.batch = 4;
  if (has("mixup")) c.data.mixup = 0.4;
}

/// On a GPU, batches are copied ahead as bytes, and the passes of a step are queued before the result of the previous
/// one is known.
class GpuImageRun : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  }
};
INSTANTIATE_TEST_SUITE_P(kinds, GpuImageRun, ::testing::Values("f32", "f32_mixup", "fp16_accumulate", "fp16"));

/// An observer of steps receives the results of each before the next one begins.
TEST_P(GpuImageRun, going_ahead_changes_no_bit) {
  const io::TempFolder tmp;
  RunConfig ahead, watched;
  gpu_config(ahead, tmp, "ahead", GetParam());
  gpu_config(watched, tmp, "watched", GetParam());
  ahead.data.workers = 4, watched.data.workers = 0;
  Observer observer;
  Hooks hooks;
  run(ahead, hooks);
  hooks.observer = &observer;
  run(watched, hooks);
  expect_same_run(tmp / "ahead", tmp / "watched", "step_00000024");
  if (ahead.train.dtype == Compute::fp16) {
    const auto lines = timeless_metrics(tmp / "ahead");
    EXPECT_EQ(lines.find("\"skipped_steps\":0"), std::string::npos) << "the first step is meant to overflow";
    EXPECT_NE(lines.find("\"skipped_steps\":4"), std::string::npos) << "and several more";
  }
}

TEST_P(GpuImageRun, the_bits_are_those_of_plain_batches_in_host_memory) {
  const io::TempFolder tmp;
  RunConfig c, plain;
  gpu_config(c, tmp, "run", GetParam());
  gpu_config(plain, tmp, "plain", GetParam());
  c.data.crop = plain.data.crop = 3;
  const auto done = run(c, {});
  models::resolve(plain.model);
  const auto set = data::open_images("", data::Split::train, {.procedural_train = plain.data.procedural});
  plain.image.family = models::ImageFamily::simple_cnn, plain.image.classes = set->classes();
  plain.image.resolve();
  auto model = models::ImageModel::create(plain.image, plain.train.seed, true);
  Pool pool(1);
  TrainStep step(model, pool, step_options(plain), Device::cuda(0));
  data::ImageLoader loader(set, {.batch = plain.train.batch,
                                 .seed = plain.train.seed,
                                 .workers = 0,
                                 .augment = {.crop = 3, .flip = true, .mixup = plain.data.mixup}});
  const Schedule schedule{plain.train.schedule, plain.train.lr, plain.train.min_lr, plain.train.steps,
                          plain.train.warmup};
  StepResult last;
  for (std::int64_t i = 0; i < plain.train.steps; ++i) {
    std::int64_t valid = 0;
    for (std::int64_t micro = 0; micro < plain.train.accumulate; ++micro) {
      const auto& b = loader.next();
      const std::pair<std::string_view, const void*> known[] = {{"images", b.images.data()},
                                                                {"targets", b.targets.data()},
                                                                {"mix", b.mix.data()},
                                                                {"targets_b", b.targets_b.data()},
                                                                {"mix_b", b.mix_b.data()}};
      std::vector<View> views;
      for (const auto& input : step.inputs())
        for (const auto& [name, memory] : known)
          if (name == input.name) views.emplace_back(memory, input.spec);
      step.accumulate(views, i, micro, micro + 1 == plain.train.accumulate);
      valid += b.valid;
    }
    const auto result = step.update(schedule.at(i), valid);
    if (std::isfinite(result.loss)) last = result;
  }
  EXPECT_EQ(done.loss, last.loss / static_cast<double>(last.valid_tokens));
  step.fetch();
  model.save(tmp / "plain_model");
  expect_same_file(tmp / "run/model/model.safetensors", tmp / "plain_model/model.safetensors");
}

TEST(image_run, on_a_gpu_a_loss_that_is_not_finite_is_explained_although_the_next_step_runs) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  const io::TempFolder tmp;
  const auto error = [&](const std::string& name, Observer* observer) {
    RunConfig c;
    gpu_config(c, tmp, name, "f32");
    c.train.lr = 1e30, c.train.warmup = 0, c.train.clip = 0;
    Hooks hooks;
    hooks.observer = observer;
    return error_of([&] { run(c, hooks); });
  };
  Observer observer;
  const auto ahead = error("ahead", nullptr);
  EXPECT_NE(ahead.find(", in samples "), std::string::npos) << ahead;
  EXPECT_EQ(ahead, error("watched", &observer));
}

TEST(image_run, other_classes_do_not_resume_and_one_is_refused) {
  const io::TempFolder tmp;
  const auto images = tmp / "images";
  for (const char* name : {"cat", "dog"}) {
    std::filesystem::create_directories(images / name);
    for (int i = 0; i < 10; ++i)
      std::filesystem::copy_file(HPCDL_SOURCE_DIR "/hpcdl/data/images/golden/colour.png",
                                 images / name / (std::to_string(i) + ".png"));
  }
  RunConfig first, other, one;
  for (RunConfig* c : {&first, &other, &one}) {
    image_config(*c, tmp, "r");
    c->train.steps = 1, c->train.batch = 4;
    c->data.images = images.string();
  }
  run(first, {});
  std::filesystem::rename(images / "dog", images / "emu");
  EXPECT_NE(error_of([&] { run(other, {}); }).find("has learned the classes cat, dog"), std::string::npos);
  std::filesystem::remove_all(images / "emu");
  EXPECT_NE(error_of([&] { run(one, {}); }).find("cat is the only class"), std::string::npos);
}

/// The images of `set`, but with a different usual mean and deviation.
struct OtherwiseNormalised : data::ImageSet {
  std::shared_ptr<const data::ImageSet> set;
  explicit OtherwiseNormalised(std::shared_ptr<const data::ImageSet> of)
      : ImageSet([&] {
          auto info = of->info();
          info.normalisation = {{0.1f, 0.2f, 0.3f}, {1, 2, 3}};
          return info;
        }()),
        set(std::move(of)) {}
  std::int64_t count() const override { return set->count(); }
  std::int32_t target(std::int64_t i) const override { return set->target(i); }
  void decode(std::int64_t i, data::Picture& to) const override { set->decode(i, to); }
};

/// A later evaluation of a model has only the folder of the run.
TEST(image_run, a_model_is_evaluated_on_pixels_like_those_it_learned_from) {
  const io::TempFolder tmp;
  for (const bool normalise : {true, false}) {
    const auto name = normalise ? "normalised" : "plain";
    RunConfig c;
    image_config(c, tmp, name);
    c.data.procedural = 200, c.data.normalise = normalise;
    const auto done = run(c, {});
    const auto model = models::ImageModel::open(tmp / name / "model");
    const auto set = data::open_images("", data::Split::test, {.procedural_test = 40});
    Pool pool(1);
    const auto score = infer::evaluate_images(model, pool, set, {});
    EXPECT_EQ(score.samples, done.eval_tokens);
    EXPECT_EQ(score.accuracy, done.eval_accuracy) << name;
    EXPECT_NEAR(score.loss, done.eval_loss, 1e-5) << name << ": sums over other batches";
    const auto other = infer::evaluate_images(model, pool, std::make_shared<OtherwiseNormalised>(set), {});
    EXPECT_EQ(other.loss, score.loss) << name << ": the model's normalisation must be used, not that of the images";
  }
  RunConfig other;
  image_config(other, tmp, "plain");
  other.data.procedural = 200;
  EXPECT_NE(error_of([&] { run(other, {}); }).find("data.normalise = false"), std::string::npos);
}

TEST(image_run, the_plan_counts_every_batch_that_waits) {
  const io::TempFolder tmp;
  RunConfig c;
  image_config(c, tmp, "r");
  const auto advice = plan_run(c, {});
  c.data.procedural = 10'036;
  const std::int64_t image = 32 * 32 * 3, more = 10'000 + 10'000 / 5;
  EXPECT_EQ(plan_run(c, {}).now().ledger.other, advice.now().ledger.other + more * image) << "all are kept";
  const data::ImageBatchLayout layout(8, 32, 32);
  const auto inputs = layout.images().bytes() + 8 * std::int64_t{sizeof(std::int32_t)};
  EXPECT_EQ(advice.now().ledger.staged, 3 * inputs + 2 * 5 * layout.bytes)
      << "inputs of two steps and an evaluation; loaded ahead for training and for evaluation: 4 each and the current "
         "one";
}

TEST(image_run, a_crop_beyond_the_image_is_refused_as_a_mistake_of_the_config) {
  const io::TempFolder tmp;
  RunConfig c, widest;
  image_config(c, tmp, "r");
  image_config(widest, tmp, "widest");
  c.data.crop = 32, widest.data.crop = 31;
  try {
    run(c, {});
    ADD_FAILURE() << "no error";
  } catch (const UsageError& e) {
    const std::string_view what = e.what();
    for (const char* part : {"data.crop = 32", "32 x 32", "31 or less"})
      EXPECT_NE(what.find(part), what.npos) << part << ": " << what;
  }
  widest.train.steps = 1;
  EXPECT_EQ(run(widest, {}).step, 1);
}

TEST(image_run, another_model_does_not_resume) {
  const io::TempFolder tmp;
  RunConfig c, wider;
  image_config(c, tmp, "r");
  image_config(wider, tmp, "r");
  wider.image.width = 8;
  c.train.steps = wider.train.steps = 1;
  run(c, {});
  EXPECT_NE(error_of([&] { run(wider, {}); }).find("another model"), std::string::npos);
}

}  // namespace
}  // namespace hpcdl::train

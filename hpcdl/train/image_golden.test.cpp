// Training of image classifiers against PyTorch: hpcdl/models/golden/make_image_models.py describes the contents of its
// files.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "hpcdl/instance.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/image_model.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {
namespace {

namespace fs = std::filesystem;

constexpr int kSteps = 20, kBatches = 4;

/// Uniform in [-1, 1): the script's hash of (stream, index).
float mixed(std::uint32_t stream, std::uint32_t index) {
  std::uint32_t x = index * 2654435761u + stream * 40503u + 1u;
  x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
  x = (x ^ (x >> 13)) * 0xC2B2AE35u;
  x ^= x >> 16;
  return static_cast<float>(x >> 8) * 0x1p-23f - 1.0f;
}

struct Batch {
  std::vector<float> images;  // NHWC
  std::vector<std::int32_t> targets;
};

Batch batch(int number, const models::ImageConfig& c, std::int64_t count) {
  Batch b{std::vector<float>(static_cast<std::size_t>(count * 3 * c.size * c.size)),
          std::vector<std::int32_t>(static_cast<std::size_t>(count))};
  std::uint32_t index = 0;
  for (std::int64_t n = 0; n < count; ++n)
    for (std::int64_t channel = 0; channel < 3; ++channel)
      for (std::int64_t p = 0; p < c.size * c.size; ++p)
        b.images[static_cast<std::size_t>((n * c.size * c.size + p) * 3 + channel)] =
            mixed(static_cast<std::uint32_t>(1000 + number), index++);
  for (std::int64_t n = 0; n < count; ++n)
    b.targets[static_cast<std::size_t>(n)] = static_cast<std::int32_t>((7 * n + 3 * number) % c.classes);
  return b;
}

/// The weights of simple_cnn_full: the formula numbers elements in the order of files.
void by_formula(models::ImageModel& model, Pool& pool) {
  std::uint32_t number = 0;
  for (const auto& p : model.parameters()) {
    const auto n = number++;
    if (p.name.find("bn") != std::string::npos) continue;
    const auto fan_in = p.host.rank() > 1 ? p.host.size() / p.host[0] : 1024;
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(fan_in)));
    for (std::int64_t i = 0; i < p.host.size(); ++i)
      p.host.ptr<float>()[i] = mixed(n, static_cast<std::uint32_t>(i)) * scale;
  }
  model.store(Stream(pool));
}

class ImageGolden : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  fs::path folder() const { return fs::path(HPCDL_SOURCE_DIR) / "hpcdl/models/golden" / std::get<0>(GetParam()); }
  std::string run() const { return std::get<1>(GetParam()); }
  models::ImageModel model() {
    if (fs::exists(folder() / "model.safetensors")) return models::ImageModel::open(folder(), true);
    auto m = models::ImageModel::create(models::read_image_config(folder()), 1, true);
    by_formula(m, pool_);
    return m;
  }
  /// Largest difference of the logits of batch 0 in evaluation from `want`.
  double distance(const models::ImageModel& m, const View& want) {
    const auto b = batch(0, m.config(), want[0]);
    Graph g({.inference = true});
    const Var x = g.input("images", {{want[0], m.config().size, m.config().size, 3}, DType::f32});
    const Var y = g.keep(m.logits(g, x));
    const Instance exe(g.finish());
    std::memcpy(exe.tensor(x).data(), b.images.data(), b.images.size() * sizeof(float));
    StepParams params;
    Stream s(pool_, &params);
    exe.run(s);
    double worst = 0;
    for (std::int64_t i = 0; i < want.size(); ++i) {
      const double d = std::fabs(static_cast<double>(exe.tensor(y).ptr<float>()[i]) - want.ptr<double>()[i]);
      worst = d <= worst ? worst : d;  // NaN is kept
    }
    return worst;
  }
  Pool pool_{2};
};

TEST_P(ImageGolden, logits_of_the_first_weights_agree) {
  const auto golden = io::SafeTensors::open(folder() / "golden.safetensors");
  const auto want = golden.at("logits");
  double top = 0;
  for (std::int64_t i = 0; i < want.size(); ++i) top = std::max(top, std::fabs(want.ptr<double>()[i]));
  EXPECT_LT(distance(model(), want),
            21 * 4 * 7.3 * 6e-8 *
                top);  // 21 layers of a few rounding errors, which convolutions may amplify (ops/conv2d/winograd.h)
}

/// Both sides differ from double by rounding errors that grow over 20 steps, and by the consequences where one of them
/// changes a ReLU or a maximum: PyTorch's float32 differs by `deviation`, and ours may differ by four times the largest
/// deviation so far, in addition to the rounding of the loss itself.
TEST_P(ImageGolden, twenty_steps_agree) {
  const auto golden = io::SafeTensors::open(folder() / "golden.safetensors");
  auto m = model();
  const auto count = golden.at("logits")[0];
  const bool nesterov = run() == "nesterov";
  const double lr = golden.at("lr").ptr<double>()[0];
  StepOptions options{
      .batch = count,
      .forward = {.label_smoothing = nesterov ? 0.1f : 0.0f},
      .optimizer = Sgd::Args{.momentum = 0.9f, .nesterov = nesterov, .weight_decay = nesterov ? 5e-4f : 0.0f},
      .clip = 0};
  TrainStep step(m, pool_, options);
  const auto want = golden.at("losses." + run()), deviation = golden.at("deviation." + run());
  double allowed = 0;
  for (int i = 0; i < kSteps; ++i) {
    const auto b = batch(i % kBatches, m.config(), count);
    const View in[] = {View(b.images.data(), step.inputs()[0].spec), View(b.targets.data(), step.inputs()[1].spec)};
    step.accumulate(in, i, 0);
    const auto result = step.update(lr, count);
    allowed = std::max(allowed, 4 * deviation.ptr<double>()[i]);
    const double expected = want.ptr<double>()[i];
    ASSERT_NEAR(result.loss / static_cast<double>(count), expected, allowed + 8 * 6e-8 * expected + 1e-6)
        << "step " << i;
  }
  EXPECT_LT(distance(m, golden.at("trained." + run())),
            4 * golden.at("trained_deviation." + run()).ptr<double>()[0] + 1e-6);
  for (const auto& buffer : m.buffers())
    if (buffer.memory.dtype() == DType::i64) {
      EXPECT_EQ(*buffer.memory.ptr<std::int64_t>(), kSteps) << buffer.name;
    }
}

INSTANTIATE_TEST_SUITE_P(Models, ImageGolden,
                         ::testing::Combine(::testing::Values("simple_cnn", "simple_cnn_full", "resnet18_cifar",
                                                              "resnet18_imagenet"),
                                            ::testing::Values("momentum", "nesterov")),
                         [](const auto& p) { return std::string(std::get<0>(p.param)) + "_" + std::get<1>(p.param); });

models::ImageConfig small() { return {.family = models::ImageFamily::resnet18, .classes = 5, .size = 8, .width = 4}; }

/// Checkpoints hold weights, running statistics and momenta: a run continued from them equals the uninterrupted run.
TEST(image_step, a_checkpoint_in_the_middle_changes_no_bit) {
  Pool pool(2);
  const StepOptions options{.batch = 6, .optimizer = Sgd::Args{.momentum = 0.9f}};
  const auto advance = [&](TrainStep& step, int from, int to) {
    double loss = 0;
    for (int i = from; i < to; ++i) {
      const auto b = batch(i, small(), 6);
      const View in[] = {View(b.images.data(), step.inputs()[0].spec), View(b.targets.data(), step.inputs()[1].spec)};
      step.accumulate(in, i, 0);
      loss = step.update(1e-2, 6).loss;
    }
    return loss;
  };
  auto straight = models::ImageModel::create(small(), 3, true), first = models::ImageModel::create(small(), 3, true),
       second = models::ImageModel::create(small(), 4, true);
  TrainStep one(straight, pool, options), two(first, pool, options), three(second, pool, options);
  const double want = advance(one, 0, 6);
  advance(two, 0, 3);
  two.fetch();
  const auto put = [](std::vector<io::NamedTensor> to, const std::vector<io::NamedTensor>& from) {
    ASSERT_EQ(to.size(), from.size());
    for (std::size_t i = 0; i < to.size(); ++i) {
      ASSERT_EQ(to[i].name, from[i].name);
      std::memcpy(to[i].tensor.data(), from[i].tensor.data(), static_cast<std::size_t>(to[i].tensor.bytes()));
    }
  };
  put(three.weights(), two.weights()), put(three.optimizer_state(), two.optimizer_state());
  three.store();
  EXPECT_EQ(advance(three, 3, 6), want);
  const auto b = batch(9, small(), 6);
  const View in[] = {View(b.images.data(), one.inputs()[0].spec), View(b.targets.data(), one.inputs()[1].spec)};
  EXPECT_EQ(one.evaluate(in).loss, three.evaluate(in).loss);
  EXPECT_EQ(one.evaluate(in).correct, three.evaluate(in).correct);
}

TEST(image_step, training_counts_right_answers_and_evaluation_changes_nothing) {
  Pool pool(2);
  auto model = models::ImageModel::create(small(), 3, true);
  TrainStep step(
      model, pool,
      {.batch = 6, .forward = {.dropout = 0.1f, .label_smoothing = 0.1f}, .optimizer = Sgd::Args{.momentum = 0.9f}});
  const auto b = batch(0, small(), 6);
  const View in[] = {View(b.images.data(), step.inputs()[0].spec), View(b.targets.data(), step.inputs()[1].spec)};
  double correct = 0;
  for (int i = 0; i < 30; ++i) {
    step.accumulate(in, i, 0);
    correct = step.update(2e-2, 6).correct;
  }
  EXPECT_EQ(correct, 6) << "six images must be memorised";
  const auto now = step.evaluate(in);
  EXPECT_EQ(step.evaluate(in).loss, now.loss);
  EXPECT_GE(now.correct, 0);
  EXPECT_LE(now.correct, 6);
}

/// Two ranks with different batches keep one model: the same weights, and rank 0's running statistics, to the bit.
TEST(image_step, ranks_that_share_a_batch_keep_one_model) {
  std::vector<std::vector<float>> kept(2), own(2), shared(2);
  testing::run_ranks(2, [&](const comm::Group& world) {
    Pool pool(1);
    auto model = models::ImageModel::create(small(), 3, true);
    TrainStep step(model, pool, {.batch = 6, .optimizer = Sgd::Args{.momentum = 0.9f}, .data = world});
    for (int i = 0; i < 4; ++i) {
      const auto b = batch(2 * i + world.rank(), small(), 6);
      const View in[] = {View(b.images.data(), step.inputs()[0].spec), View(b.targets.data(), step.inputs()[1].spec)};
      step.accumulate(in, i, 0);
      EXPECT_EQ(step.update(1e-2, 6).valid_tokens, 12);
    }
    const auto floats = [](std::span<const StateEntry> part, std::vector<float>& to) {
      for (const auto& p : part)
        if (p.memory.dtype() == DType::f32)
          to.insert(to.end(), p.memory.ptr<float>(), p.memory.ptr<float>() + p.memory.size());
    };
    const auto me = static_cast<std::size_t>(world.rank());
    floats(model.buffers(), own[me]);
    step.share_buffers();
    floats(model.parameters(), kept[me]), floats(model.buffers(), kept[me]), floats(model.buffers(), shared[me]);
  });
  EXPECT_EQ(kept[0], kept[1]);
  EXPECT_EQ(shared[1], own[0]) << "must equal that of the first rank";
  EXPECT_NE(own[1], own[0]) << "before sharing, every rank has the statistics of its own batches";
}

}  // namespace
}  // namespace hpcdl::train

// Image classifiers against PyTorch (golden files of golden/make_image_models.py) and for self-consistency.

#include "hpcdl/models/image_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "hpcdl/core/error.h"
#include "hpcdl/instance.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::models {
namespace {

namespace fs = std::filesystem;

std::vector<float> floats(const View& v) {
  std::vector<float> out(static_cast<std::size_t>(v.size()));
  std::memcpy(out.data(), v.data(), static_cast<std::size_t>(v.bytes()));
  return out;
}

ImageConfig config(ImageFamily family, Stem stem, std::int64_t classes, std::int64_t width = 64) {
  return {.family = family, .stem = stem, .classes = classes, .width = width};
}

TEST(ImageModel, HasAsManyParametersAsPublished) {
  EXPECT_EQ(ImageModel::create(config(ImageFamily::simple_cnn, Stem::cifar, 10), 1, false).parameter_count(),
            2'474'506);
  EXPECT_EQ(ImageModel::create(config(ImageFamily::resnet18, Stem::imagenet, 1000), 1, false).parameter_count(),
            11'689'512);
  EXPECT_EQ(ImageModel::create(config(ImageFamily::resnet18, Stem::cifar, 10), 1, false).parameter_count(), 11'173'962);
}

/// The names of torchvision's resnet18().state_dict().
std::set<std::string> torchvision_names() {
  std::set<std::string> names{"conv1.weight", "fc.weight", "fc.bias"};
  const auto norm = [&](const std::string& prefix) {
    for (const char* part : {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"})
      names.insert(prefix + "." + part);
  };
  norm("bn1");
  for (const std::string layer : {"layer1", "layer2", "layer3", "layer4"})
    for (const std::string block : {".0.", ".1."}) {
      for (const std::string n : {"1", "2"})
        names.insert(layer + block + "conv" + n + ".weight"), norm(layer + block + "bn" + n);
      if (layer != "layer1" && block == ".0.")
        names.insert(layer + block + "downsample.0.weight"), norm(layer + block + "downsample.1");
    }
  return names;
}

TEST(ImageModel, ResNetFilesHaveTorchvisionsNamesAndShapes) {
  const io::TempFolder temp;
  ImageModel::create(config(ImageFamily::resnet18, Stem::imagenet, 1000, 8), 1, false).save(temp.path());
  const auto files = io::TensorFolder::open(temp.path());
  std::set<std::string> names;
  for (const auto& t : files.tensors()) names.insert(t.name);
  EXPECT_EQ(names, torchvision_names());
  EXPECT_EQ(names.size(), 122u);
  EXPECT_EQ(files.at("conv1.weight").shape(), (Shape{8, 3, 7, 7}));
  EXPECT_EQ(files.at("layer3.0.conv1.weight").shape(), (Shape{32, 16, 3, 3}));
  EXPECT_EQ(files.at("layer2.0.downsample.0.weight").shape(), (Shape{16, 8, 1, 1}));
  EXPECT_EQ(files.at("bn1.num_batches_tracked").spec(), (Spec{Shape(), DType::i64}));
}

TEST(ImageModel, NewWeightsAreAPureFunctionOfTheSeedAndSpreadAsTorchs) {
  auto a = ImageModel::create(config(ImageFamily::simple_cnn, Stem::cifar, 10), 1, false),
       b = ImageModel::create(config(ImageFamily::simple_cnn, Stem::cifar, 10), 1, false),
       other = ImageModel::create(config(ImageFamily::simple_cnn, Stem::cifar, 10), 2, false);
  for (std::size_t i = 0; i < a.parameters().size(); ++i) {
    EXPECT_EQ(floats(a.parameters()[i].memory), floats(b.parameters()[i].memory));
    if (a.parameters()[i].name == "conv2.weight") {
      const auto v = floats(a.parameters()[i].memory);
      EXPECT_NE(v, floats(other.parameters()[i].memory));
      double squares = 0, largest = 0;
      for (const float x : v) squares += double{x} * double{x}, largest = std::max(largest, std::fabs(double{x}));
      const double bound = 1 / std::sqrt(64.0 * 9);  // kaiming_uniform(a = sqrt(5)); 73,728 draws
      EXPECT_LE(largest, bound);
      EXPECT_GT(largest, 0.999 * bound);
      EXPECT_NEAR(squares / static_cast<double>(v.size()), bound * bound / 3, 0.02 * bound * bound / 3);
    }
  }
  auto r = ImageModel::create(config(ImageFamily::resnet18, Stem::cifar, 10), 1, false);
  for (const auto& p : r.parameters())
    if (p.name == "layer2.1.conv2.weight") {
      double squares = 0;
      for (const float x : floats(p.memory)) squares += double{x} * double{x};
      EXPECT_NEAR(squares / static_cast<double>(p.memory.size()), 2 / (128.0 * 9),
                  0.02 * 2 / (128.0 * 9));  // kaiming_normal, fan out
    }
}

/// Files hold OIHW, memory OHWI; a linear layer after an image has its columns in the order (c, h, w) in files.
TEST(ImageModel, SavedFoldersHoldTheSameModelInTorchsOrder) {
  const io::TempFolder temp;
  auto model = ImageModel::create(config(ImageFamily::simple_cnn, Stem::cifar, 10, 4), 3, true);
  for (auto& b : model.buffers())
    if (b.memory.dtype() == DType::f32)
      for (std::int64_t i = 0; i < b.memory.size(); ++i) b.memory.ptr<float>()[i] = 0.5f + 0.1f * static_cast<float>(i);
  model.count_pass(), model.count_pass();
  model.save(temp.path());
  const auto files = io::TensorFolder::open(temp.path());
  for (const auto& p : model.parameters()) {
    const auto file = floats(files.at(p.name)), memory = floats(p.memory);
    if (p.name == "conv2.weight") {
      for (std::int64_t o = 0; o < 8; ++o)
        for (std::int64_t i = 0; i < 4; ++i)
          for (std::int64_t k = 0; k < 9; ++k)
            ASSERT_EQ(file[static_cast<std::size_t>((o * 4 + i) * 9 + k)],
                      memory[static_cast<std::size_t>((o * 9 + k) * 4 + i)]);
    } else if (p.name == "fc1.weight") {
      for (std::int64_t o = 0; o < 32; ++o)
        for (std::int64_t c = 0; c < 16; ++c)
          for (std::int64_t k = 0; k < 16; ++k)
            ASSERT_EQ(file[static_cast<std::size_t>((o * 16 + c) * 16 + k)],
                      memory[static_cast<std::size_t>((o * 16 + k) * 16 + c)]);
    }
  }
  auto again = ImageModel::open(temp.path());
  EXPECT_EQ(again.config(), model.config());
  ASSERT_EQ(again.parameters().size(), model.parameters().size());
  ASSERT_EQ(again.buffers().size(), model.buffers().size());
  for (std::size_t i = 0; i < model.parameters().size(); ++i)
    EXPECT_EQ(floats(again.parameters()[i].memory), floats(model.parameters()[i].memory)) << model.parameters()[i].name;
  for (std::size_t i = 0; i < model.buffers().size(); ++i) {
    const auto &a = again.buffers()[i], &b = model.buffers()[i];
    EXPECT_EQ(std::memcmp(a.memory.data(), b.memory.data(), static_cast<std::size_t>(b.memory.bytes())), 0) << b.name;
    if (b.memory.dtype() == DType::i64) {
      EXPECT_EQ(*a.memory.ptr<std::int64_t>(), 2);
    }
  }
}

/// Loss and gradients of a training pass, and the running statistics after it.
std::vector<std::vector<float>> training_pass(ImageConfig c, const nn::ForwardOptions& o) {
  auto model = ImageModel::create(c, 5, true);
  Graph g;
  std::vector<Var> in;
  for (const auto& input : model.inputs(4, 0, o)) in.push_back(g.input(input.name, input.spec, input.role));
  const auto out = model.pass(g, in, o);
  g.keep(out.loss), g.keep(out.correct);
  g.backward(out.loss);
  const Instance exe(g.finish());
  for (std::size_t k = 0; k < in.size(); ++k) {
    const Tensor t = exe.tensor(in[k]);
    for (std::int64_t i = 0; i < t.size(); ++i) {
      if (t.dtype() == DType::i32)
        t.ptr<std::int32_t>()[i] = static_cast<std::int32_t>((3 * i + static_cast<std::int64_t>(k)) % c.classes);
      else t.ptr<float>()[i] = k == 0 ? std::sin(0.37f * static_cast<float>(i)) : k == 2 ? 0.75f : 0.25f;
    }
  }
  Pool pool(2);
  StepParams params{.seed = 3};
  Stream s(pool, &params);
  exe.run(s);
  std::vector<std::vector<float>> all{floats(exe.tensor(out.loss)), floats(exe.tensor(out.correct))};
  for (const auto& p : model.parameters()) all.push_back(floats(p.gradient->memory));
  for (const auto& b : model.buffers())
    if (b.memory.dtype() == DType::f32) all.push_back(floats(b.memory));
  return all;
}

TEST(ImageModel, RecomputeIsBitwiseNeutralAndUpdatesStatisticsOnce) {
  for (const auto family : {ImageFamily::simple_cnn, ImageFamily::resnet18}) {
    auto c = config(family, Stem::cifar, 7, 4);
    c.size = 16;
    EXPECT_EQ(training_pass(c, {.dropout = 0.2f, .training = true}),
              training_pass(c, {.recompute = true, .dropout = 0.2f, .training = true}));
  }
}

TEST(ImageModel, MixturesOfAnImageWithItselfAreTheImage) {
  auto c = config(ImageFamily::simple_cnn, Stem::cifar, 7, 4);
  c.size = 16;
  auto model = ImageModel::create(c, 5, false);
  nn::ForwardOptions mixed{.training = true, .label_smoothing = 0.1f, .mixup = true}, plain = mixed;
  plain.mixup = false;
  const auto a = training_pass(c, mixed), b = training_pass(c, plain);
  EXPECT_EQ(a[1], b[1]);
  EXPECT_NE(a[0], b[0]) << "the partners must have other targets";
  // 3/4 of the loss of the targets and 1/4 of that of the partners, whose targets belong to another input.
  EXPECT_GT(a[0][0], 0.5f * b[0][0]);
}

TEST(ImageModel, MistakesAreNamed) {
  const io::TempFolder temp;
  EXPECT_THROW(ImageModel::open(temp.path()), Error);
  auto small = config(ImageFamily::simple_cnn, Stem::cifar, 10, 4);
  const auto model = ImageModel::create(small, 3, false);
  model.save(temp.path());
  small.width = 8;
  write_image_config(temp.path(), small);
  try {
    ImageModel::open(temp.path());
    FAIL() << "expected an error for a folder with an inconsistent config.json";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("conv1.weight"), std::string::npos) << e.what();
  }
  small.width = 4, small.labels = {"ant", "b\"ee"}, small.normalise = false;
  write_image_config(temp.path(), small);
  EXPECT_EQ(read_image_config(temp.path()).labels, small.labels);
  EXPECT_FALSE(read_image_config(temp.path()).normalise);
  small.mean = {0.1f, 0.2f, 0.3f}, small.std = {1, 2, 3};
  small.resolve();
  write_image_config(temp.path(), small);
  EXPECT_EQ(read_image_config(temp.path()), small);
  for (
      const char* text :
      {R"({"model_type": "simple_cnn", "classes": 2, "image_size": 32, "id2label": {"0": "a", "2": "b"}})",
       R"({"model_type": "simple_cnn", "classes": 2, "image_size": 32, "id2label": {"0": "a", "1": "b", "2": "c"}})",
       "{", "[]", "{}", R"({"model_type": "gpt2"})", R"({"model_type": "resnet18", "classes": 1, "image_size": 32})",
       R"({"model_type": "simple_cnn", "classes": 10, "image_size": 33})",
       R"({"model_type": "simple_cnn", "classes": 10, "image_size": 32, "image_mean": [0, 0, 0]})",
       R"({"model_type": "simple_cnn", "classes": 10, "image_size": 32, "image_mean": 1, "image_std": 2})",
       R"({"model_type": "simple_cnn", "classes": 10, "image_size": 32, "image_mean": [0, 0, 0], "image_std": [1, 0, 1]})",
       R"({"model_type": "simple_cnn", "classes": "ten", "image_size": 32})",
       R"({"model_type": "resnet18", "stem": "none", "classes": 10, "image_size": 32})"}) {
    io::write_file_atomic(temp.path() / "config.json", text);
    EXPECT_THROW(ImageModel::open(temp.path()), Error) << text;
  }
  Graph g({.inference = true});
  EXPECT_THROW(model.logits(g, g.input("x", {{2, 16, 16, 3}, DType::f32})), Error);
  EXPECT_THROW(model.logits(g, g.input("y", {{2, 3, 32, 32}, DType::f32})), Error);
}

}  // namespace
}  // namespace hpcdl::models

#include "hpcdl/data/images/device_images.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "hpcdl/core/error.h"

namespace hpcdl::data {
namespace {

class DeviceImagesTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
    stream_.emplace(kGpu, pool_);
    options_ = {.batch = 8,
                .seed = 6,
                .workers = 2,
                .device = kGpu,
                .bytes = GetParam(),
                .augment = {.crop = 4, .flip = true, .mixup = GetParam() ? 0.0 : 1.0}};
  }
  template <class T> std::vector<T> on_host(const Tensor& t) const {
    std::vector<T> out(static_cast<std::size_t>(t.size()));
    copy(*stream_, Tensor(out.data(), t.spec()), t);
    stream_->synchronize();
    return out;
  }
  ImageLoaderOptions plain() const {
    auto o = options_;
    o.bytes = false;
    return o;
  }

  static constexpr Device kGpu = Device::cuda(0);
  Pool pool_{1};
  std::optional<Stream> stream_;
  std::shared_ptr<const ImageSet> set_ = open_images("", Split::train, {.procedural_train = 90});
  ImageLoaderOptions options_;
};

/// As f32 or as bytes that the GPU normalises: the same bits as the loader computes on a CPU.
TEST_P(DeviceImagesTest, batches_arrive_as_the_loader_makes_them) {
  ImageLoader cpu(set_, plain()), loader(set_, options_);
  DeviceImages images([&] { return &loader.next(); }, loader.layout(), *stream_, loader.table());
  for (int b = 0; b < 30; ++b) {
    const ImageBatch& want = cpu.next();
    const DeviceBatch* got = images.next();
    ASSERT_NE(got, nullptr);
    EXPECT_EQ(got->images.shape(), (Shape{8, 32, 32, 3}));
    EXPECT_EQ(on_host<float>(got->images), std::vector<float>(want.images.begin(), want.images.end())) << b;
    EXPECT_EQ(on_host<std::int32_t>(got->targets), std::vector<std::int32_t>(want.targets.begin(), want.targets.end()));
    EXPECT_EQ(on_host<std::int32_t>(got->targets_b),
              std::vector<std::int32_t>(want.targets_b.begin(), want.targets_b.end()));
    EXPECT_EQ(on_host<float>(got->mix), std::vector<float>(want.mix.begin(), want.mix.end()));
    EXPECT_EQ(on_host<float>(got->mix_b), std::vector<float>(want.mix_b.begin(), want.mix_b.end()));
    EXPECT_EQ(got->ids, std::vector<std::int64_t>(want.ids.begin(), want.ids.end()));
    EXPECT_EQ(got->after, want.after);
    EXPECT_EQ(got->valid, 8);
  }
  EXPECT_GT(images.starved_seconds(), 0) << "without computation, every batch is waited for";
}

/// Queued far ahead of the GPU, which starts only after the last batch is queued: no copy may overtake the work that
/// reads its block.
TEST_P(DeviceImagesTest, a_block_is_written_again_after_its_readers) {
  constexpr int kBlocks = 3, kBatches = 20;
  ImageLoader cpu(set_, plain()), loader(set_, options_);
  DeviceImages images([&] { return &loader.next(); }, loader.layout(), *stream_, loader.table(), kBlocks);
  std::vector<OwnedTensor> taken;
  OwnedTensor large({{std::int64_t{256} << 20}, DType::u8}, kGpu), other({{std::int64_t{256} << 20}, DType::u8}, kGpu);
  for (int b = 0; b < kBatches; ++b) {
    const DeviceBatch* got = images.next();
    for (int i = 0; i < 4; ++i) copy(*stream_, large.tensor, other.tensor);
    taken.emplace_back(got->images.spec(), kGpu);
    copy(*stream_, taken.back().tensor, got->images);
  }
  for (const auto& t : taken) {
    const ImageBatch& want = cpu.next();
    EXPECT_EQ(on_host<float>(t.tensor), std::vector<float>(want.images.begin(), want.images.end()));
  }
}

TEST_P(DeviceImagesTest, an_evaluation_ends_and_begins_again) {
  auto o = plain();
  o.augment = {};
  options_.augment = {};
  ImageEvalBatches cpu(set_, o), eval(set_, options_);
  DeviceImages images([&] { return eval.next(); }, eval.layout(), *stream_, eval.table());
  for (int round = 0; round < 2; ++round) {
    std::int64_t seen = 0, batches = 0;
    cpu.rewind(), eval.rewind();
    while (const DeviceBatch* b = images.next()) {
      const auto* want = cpu.next();
      EXPECT_EQ(on_host<float>(b->images), std::vector<float>(want->images.begin(), want->images.end()))
          << "expected black images after the last";
      seen += b->valid, ++batches;
    }
    EXPECT_EQ(seen, 90);
    EXPECT_EQ(batches, 12);
    EXPECT_EQ(images.next(), nullptr);
  }
}

INSTANTIATE_TEST_SUITE_P(gpu, DeviceImagesTest, ::testing::Values(false, true),
                         [](const auto& each) { return each.param ? "bytes" : "floats"; });

/// The GPU's conversion of bytes, on a CPU.
TEST(device_images, bytes_and_the_table_come_to_the_same_bits) {
  const auto set = open_images("", Split::train, {.procedural_train = 40});
  ImageLoaderOptions o{.batch = 8, .seed = 6, .workers = 0, .augment = {.crop = 4, .flip = true}};
  ImageLoader floats(set, o);
  o.bytes = true;
  ImageLoader bytes(set, o);
  const auto table = bytes.table();
  ASSERT_EQ(table.size(), 3u * 256);
  EXPECT_LT(bytes.layout().bytes, floats.layout().bytes / 3);
  for (int b = 0; b < 8; ++b) {
    const auto& want = floats.next();
    const auto& got = bytes.next();
    ASSERT_EQ(got.pixels.size(), want.images.size());
    EXPECT_TRUE(got.images.empty() && want.pixels.empty());
    for (std::size_t i = 0; i < want.images.size(); ++i)
      ASSERT_EQ(table[3u * got.pixels[i] + i % 3], want.images[i]) << i;
    EXPECT_TRUE(std::equal(got.ids.begin(), got.ids.end(), want.ids.begin()));
  }
}

TEST(device_images, mixed_images_are_no_bytes) {
  const auto set = open_images("", Split::train, {.procedural_train = 40});
  EXPECT_THROW(ImageLoader(set, {.bytes = true, .augment = {.mixup = 0.2}}), Error);
}

}  // namespace
}  // namespace hpcdl::data

#include "hpcdl/data/images/device_images.h"

#include <gtest/gtest.h>

#include <cstring>

#include "hpcdl/testing/devices.h"

namespace hpcdl::data {
namespace {

class DeviceImagesTest : public ::testing::TestWithParam<Device> {
 protected:
  template <class T> std::vector<T> on_host(const Tensor& t) const {
    std::vector<T> out(static_cast<std::size_t>(t.size()));
    copy(stream_, Tensor(out.data(), t.spec()), t);
    stream_.synchronize();
    return out;
  }

  Pool pool_{1};
  Stream stream_{GetParam(), pool_};
  std::shared_ptr<const ImageSet> set_ = open_images("", Split::train, {.procedural_train = 90});
  ImageLoaderOptions options_{.batch = 8, .seed = 6, .workers = 2, .device = GetParam(), .augment = {.crop = 4, .flip = true, .mixup = 1}};
};

TEST_P(DeviceImagesTest, batches_arrive_as_the_loader_makes_them) {
  ImageLoader plain(set_, options_), loader(set_, options_);
  DeviceImages images([&] { return &loader.next(); }, loader.layout(), stream_);
  for (int b = 0; b < 30; ++b) {
    const ImageBatch& want = plain.next();
    const DeviceBatch* got = images.next();
    ASSERT_NE(got, nullptr);
    if (b % 3 != 0) images.begin_next();  // whether it is called or not
    EXPECT_EQ(got->images.shape(), (Shape{8, 32, 32, 3}));
    EXPECT_EQ(on_host<float>(got->images), std::vector<float>(want.images.begin(), want.images.end())) << b;
    EXPECT_EQ(on_host<std::int32_t>(got->targets), std::vector<std::int32_t>(want.targets.begin(), want.targets.end()));
    EXPECT_EQ(on_host<std::int32_t>(got->targets_b), std::vector<std::int32_t>(want.targets_b.begin(), want.targets_b.end()));
    EXPECT_EQ(on_host<float>(got->mix), std::vector<float>(want.mix.begin(), want.mix.end()));
    EXPECT_EQ(got->ids, std::vector<std::int64_t>(want.ids.begin(), want.ids.end()));
    EXPECT_EQ(got->after, want.after);
    EXPECT_EQ(got->valid, 8);
  }
}

TEST_P(DeviceImagesTest, an_evaluation_ends) {
  ImageEvalBatches eval(set_, options_);
  DeviceImages images([&] { return eval.next(); }, eval.layout(), stream_);
  std::int64_t seen = 0, batches = 0;
  while (const DeviceBatch* b = images.next()) {
    images.begin_next();
    seen += b->valid, ++batches;
  }
  EXPECT_EQ(seen, 90);
  EXPECT_EQ(batches, 12);
  EXPECT_EQ(images.next(), nullptr);
}

INSTANTIATE_TEST_SUITE_P(devices, DeviceImagesTest, ::testing::ValuesIn(testing::devices()), testing::device_kind);

}  // namespace
}  // namespace hpcdl::data

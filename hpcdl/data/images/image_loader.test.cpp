#include "hpcdl/data/images/image_loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "hpcdl/core/error.h"

namespace hpcdl::data {
namespace {

/// Images of one pixel value, which is the sample's number; sample `broken` cannot be decoded.
class Counting : public ImageSet {
 public:
  explicit Counting(std::int64_t count, std::int64_t broken = -1)
      : ImageSet({.name = "counting", .classes = {"even", "odd"}, .height = 4, .width = 4}),
        count_(count),
        broken_(broken) {}
  std::int64_t count() const override { return count_; }
  std::int32_t target(std::int64_t i) const override { return static_cast<std::int32_t>(i % 2); }
  void decode(std::int64_t i, Picture& to) const override {
    if (i == broken_) fail("data", "sample {} is broken", i);
    to.height = to.width = 4;
    to.pixels.assign(4 * 4 * 3, static_cast<std::uint8_t>(i));
  }

 private:
  std::int64_t count_, broken_;
};

std::shared_ptr<const ImageSet> counting(std::int64_t n) { return std::make_shared<Counting>(n); }

std::string bytes_of(const ImageBatch& b) { return {reinterpret_cast<const char*>(b.block.data()), b.block.size()}; }

std::vector<std::string> take(ImageLoader& loader, int batches) {
  std::vector<std::string> all;
  for (int b = 0; b < batches; ++b) all.push_back(bytes_of(loader.next()));
  return all;
}

std::vector<std::int64_t> ids_of(ImageLoader& loader, int batches) {
  std::vector<std::int64_t> ids;
  for (int b = 0; b < batches; ++b) {
    const auto& batch = loader.next();
    ids.insert(ids.end(), batch.ids.begin(), batch.ids.end());
  }
  return ids;
}

const AugmentOptions kEverything{.crop = 4, .flip = true, .mixup = 0.4};

TEST(image_loader, an_epoch_has_every_sample_once_with_its_own_target_and_pixels) {
  ImageLoader loader(counting(10), {.batch = 4, .seed = 3, .augment = {.normalise = false}});
  std::map<std::int64_t, int> seen;
  for (int b = 0; b < 5; ++b) {
    const auto& batch = loader.next();
    for (std::size_t r = 0; r < 4; ++r) {
      const auto id = batch.ids[r];
      ++seen[id];
      EXPECT_EQ(batch.targets[r], id % 2);
      EXPECT_EQ(batch.targets_b[r], id % 2);
      EXPECT_EQ(batch.mix[r], 1);
      for (std::size_t k = 0; k < 48; ++k) EXPECT_FLOAT_EQ(batch.images[r * 48 + k], static_cast<float>(id) / 255);
    }
  }
  EXPECT_EQ(seen.size(), 10u);
  for (const auto& [id, n] : seen) EXPECT_EQ(n, 2) << id;
  EXPECT_EQ(loader.state(), (LoaderState{2, 0}));
}

TEST(image_loader, the_number_of_workers_and_batches_ahead_changes_no_bit) {
  const auto set = open_images("", Split::train, {.procedural_train = 150});
  ImageLoader alone(set, {.batch = 16, .seed = 5, .workers = 0, .augment = kEverything});
  const auto want = take(alone, 20);  // two epochs and more
  EXPECT_NE(want[0], want[1]);
  for (const int workers : {1, 2, 4, 8})
    for (const int prefetch : {0, 3, 16}) {
      ImageLoader loader(set,
                         {.batch = 16, .seed = 5, .workers = workers, .prefetch = prefetch, .augment = kEverything});
      EXPECT_EQ(take(loader, 20), want) << workers << " workers, " << prefetch << " ahead";
    }
}

TEST(image_loader, goes_on_from_two_integers_in_the_middle_of_an_epoch) {
  const auto set = open_images("", Split::train, {.procedural_train = 70});
  const ImageLoaderOptions options{.batch = 8, .seed = 9, .workers = 3, .augment = kEverything};
  ImageLoader whole(set, options);
  take(whole, 5);
  const LoaderState middle = whole.state();
  EXPECT_EQ(middle, (LoaderState{0, 40}));
  const auto want = take(whole, 12);
  ImageLoader resumed(set, options, middle);
  EXPECT_EQ(take(resumed, 12), want);
  EXPECT_EQ(resumed.state(), whole.state());
}

TEST(image_loader, seeds_and_epochs_give_other_orders_and_other_draws) {
  const auto order = [](std::uint64_t seed, LoaderState at) {
    ImageLoader loader(counting(40), {.batch = 40, .seed = seed}, at);
    return ids_of(loader, 1);
  };
  EXPECT_EQ(order(1, {}), order(1, {}));
  EXPECT_NE(order(1, {}), order(2, {}));
  EXPECT_NE(order(1, {}), order(1, {1, 0}));
}

TEST(image_loader, ranks_share_out_what_one_rank_sees) {
  const auto set = open_images("", Split::train, {.procedural_train = 50});
  const auto options = [](std::int64_t batch, int rank, int world) {
    return ImageLoaderOptions{.batch = batch, .seed = 4, .rank = rank, .world = world, .augment = kEverything};
  };
  ImageLoader one(set, options(12, 0, 1));
  ImageLoader first(set, options(4, 0, 3)), second(set, options(4, 1, 3)), third(set, options(4, 2, 3));
  for (int b = 0; b < 7; ++b) {
    const auto& all = one.next();
    std::size_t at = 0;
    for (ImageLoader* loader : {&first, &second, &third}) {
      const auto& part = loader->next();
      EXPECT_TRUE(std::equal(part.ids.begin(), part.ids.end(), all.ids.begin() + static_cast<std::ptrdiff_t>(at)));
      EXPECT_EQ(std::memcmp(part.images.data(), all.images.data() + at * 3072, part.images.size_bytes()), 0);
      EXPECT_EQ(loader->state(), one.state());
      at += part.ids.size();
    }
  }
}

TEST(image_loader, an_error_of_a_worker_is_thrown_where_its_batch_is_asked_for) {
  const auto broken = std::make_shared<Counting>(40, 7);
  ImageLoader healthy(counting(40), {.batch = 4, .seed = 2, .workers = 0});
  int good = 0;
  for (;; ++good) {
    const auto& ids = healthy.next().ids;
    if (std::find(ids.begin(), ids.end(), 7) != ids.end()) break;
  }
  for (const int workers : {0, 1, 4}) {
    ImageLoader loader(broken, {.batch = 4, .seed = 2, .workers = workers});
    for (int b = 0; b < good; ++b) loader.next();
    const auto state = loader.state();
    for (int again = 0; again < 2; ++again) try {
        loader.next();
        ADD_FAILURE() << "no error with " << workers << " workers";
      } catch (const Error& e) {
        EXPECT_STREQ(e.what(), "[data] sample 7 is broken");
      }
    EXPECT_EQ(loader.state(), state);
  }
}

TEST(image_loader, waits_are_counted) {
  const auto set = open_images("", Split::train, {.procedural_train = 500});
  ImageLoader alone(set, {.batch = 256, .workers = 0});
  EXPECT_EQ(alone.waited_seconds(), 0);
  alone.next();
  EXPECT_GT(alone.waited_seconds(), 0);
}

TEST(image_loader, refuses_what_cannot_be) {
  EXPECT_THROW(ImageLoader(counting(4), {.batch = 0}), Error);
  EXPECT_THROW(ImageLoader(counting(4), {.workers = -1}), Error);
  EXPECT_THROW(ImageLoader(counting(4), {.prefetch = -1}), Error);
  EXPECT_THROW(ImageLoader(counting(4), {.rank = 2, .world = 2}), Error);
  EXPECT_THROW(ImageLoader(counting(4), {}, {-1, 0}), Error);
  EXPECT_THROW(ImageLoader(nullptr, {}), Error);
  EXPECT_THROW(ImageLoader(counting(4), {.augment = {.crop = 4}}), Error);
  EXPECT_THROW(ImageLoader(counting(4), {.augment = {.mixup = -1}}), Error);
}

TEST(image_eval, every_image_once_in_order_the_rest_is_no_target) {
  for (const int world : {1, 2, 3, 5})
    for (const int workers : {0, 3}) {
      std::vector<std::int64_t> seen;
      for (int rank = 0; rank < world; ++rank) {
        ImageEvalBatches eval(counting(11), {.batch = 4, .rank = rank, .world = world, .workers = workers});
        EXPECT_EQ(eval.samples(), 11);
        for (int round = 0; round < 2; ++round) {
          std::int64_t batches = 0;
          for (const ImageBatch* b = eval.next(); b != nullptr; b = eval.next(), ++batches) {
            std::int64_t valid = 0;
            for (std::size_t r = 0; r < 4; ++r) {
              EXPECT_EQ(b->targets[r] >= 0, b->ids[r] >= 0);
              EXPECT_EQ(b->mix[r], 1);
              if (b->ids[r] < 0) continue;
              ++valid;
              EXPECT_EQ(b->targets[r], b->ids[r] % 2);
              if (round == 0) seen.push_back(b->ids[r]);
            }
            EXPECT_EQ(b->valid, valid);
          }
          EXPECT_EQ(batches, eval.batches());
          EXPECT_EQ(eval.next(), nullptr);
          eval.rewind();
        }
      }
      std::sort(seen.begin(), seen.end());
      std::vector<std::int64_t> all(11);
      std::iota(all.begin(), all.end(), 0);
      EXPECT_EQ(seen, all) << world << " ranks";
    }
}

}  // namespace
}  // namespace hpcdl::data

#include "hpcdl/data/images/augment.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "hpcdl/data/images/resize.h"

namespace hpcdl::data {
namespace {

constexpr int kSide = 8;

/// Pixel (y, x, c) of image i is 1 + (i * 7 + y * 29 + x * 3 + c) mod 255: never black, and all pixels of an image
/// differ.
std::uint8_t pixel(std::int64_t i, int y, int x, int c) {
  return static_cast<std::uint8_t>(1 + (i * 7 + y * 29 + x * 3 + c) % 255);
}

class Known : public ImageSet {
 public:
  explicit Known(int height = kSide, int width = kSide, Normalisation n = {})
      : ImageSet({.name = "known", .classes = {"a", "b", "c"}, .height = height, .width = width, .normalisation = n}) {}
  std::int64_t count() const override { return 64; }
  std::int32_t target(std::int64_t i) const override { return static_cast<std::int32_t>(i % 3); }
  void decode(std::int64_t i, Picture& to) const override {
    to.height = info_.height, to.width = info_.width;
    to.pixels.clear();
    for (int y = 0; y < to.height; ++y)
      for (int x = 0; x < to.width; ++x)
        for (int c = 0; c < 3; ++c) to.pixels.push_back(pixel(i, y, x, c));
  }
};

std::vector<float> training(const Augmenter& a, std::int64_t i, std::int64_t epoch) {
  Augmenter::Scratch scratch;
  std::vector<float> out(static_cast<std::size_t>(a.pixels()));
  a.training(i, epoch, scratch, out);
  return out;
}

/// Image i shifted by (dy, dx) and optionally flipped, with black around it, in [0, 1].
std::vector<float> moved(std::int64_t i, int dy, int dx, bool flip) {
  std::vector<float> out;
  for (int y = 0; y < kSide; ++y)
    for (int x = 0; x < kSide; ++x)
      for (int c = 0; c < 3; ++c) {
        const int sy = y + dy, sx = (flip ? kSide - 1 - x : x) + dx;
        const bool inside = sy >= 0 && sy < kSide && sx >= 0 && sx < kSide;
        out.push_back(inside ? static_cast<float>(pixel(i, sy, sx, c)) * (1 / 255.f) : 0);
      }
  return out;
}

TEST(augment, crops_and_flips_are_the_image_moved_each_way_about_as_often) {
  const Known set;
  const Augmenter a(set, {.crop = 2, .flip = true, .normalise = false}, 11);
  std::map<std::tuple<int, int, bool>, int> found;
  int matches = 0;
  for (std::int64_t epoch = 0; epoch < 40; ++epoch)
    for (std::int64_t i = 0; i < 64; ++i) {
      const auto got = training(a, i, epoch);
      for (int dy = -2; dy <= 2; ++dy)
        for (int dx = -2; dx <= 2; ++dx)
          for (const bool flip : {false, true})
            if (got == moved(i, dy, dx, flip)) ++found[{dy, dx, flip}], ++matches;
    }
  EXPECT_EQ(matches, 40 * 64);
  EXPECT_EQ(found.size(), 50u);
  // 2560 draws of 50 outcomes: 51 each, standard deviation 7.
  for (const auto& [outcome, n] : found) EXPECT_NEAR(n, 51, 6 * 7);
}

TEST(augment, draws_belong_to_seed_epoch_and_sample) {
  const Known set;
  const Augmenter a(set, {.crop = 4, .flip = true}, 1), same(set, {.crop = 4, .flip = true}, 1),
      other(set, {.crop = 4, .flip = true}, 2);
  int epochs = 0, seeds = 0;
  for (std::int64_t i = 0; i < 64; ++i) {
    EXPECT_EQ(training(a, i, 3), training(same, i, 3));
    epochs += training(a, i, 3) == training(a, i, 4);
    seeds += training(a, i, 3) == training(other, i, 3);
  }
  EXPECT_LT(epochs, 12);  // 162 outcomes each
  EXPECT_LT(seeds, 12);
}

TEST(augment, normalises_each_channel) {
  const Normalisation n{{.1f, .5f, .7f}, {.2f, .25f, .5f}};
  const Known set(kSide, kSide, n);
  const Augmenter a(set, {}, 0);
  const auto got = training(a, 5, 0);
  for (std::size_t k = 0; k < got.size(); ++k) {
    const auto p = static_cast<int>(k / 3), c = static_cast<int>(k % 3);
    const double want = (pixel(5, p / kSide, p % kSide, c) / 255. - n.mean[k % 3]) / n.std[k % 3];
    EXPECT_NEAR(got[k], want, 4e-6);
  }
  Augmenter::Scratch scratch;
  std::vector<float> plain(got.size());
  a.plain(5, scratch, plain);
  EXPECT_EQ(plain, got);  // no draws were needed
}

TEST(augment, mixup_is_the_weighted_sum_of_two_augmented_images) {
  const Known set;
  const AugmentOptions options{.crop = 2, .flip = true, .mixup = 0.3};
  const Augmenter a(set, options, 21);
  std::set<std::int64_t> partners;
  Augmenter::Scratch scratch;
  std::vector<float> out(static_cast<std::size_t>(a.pixels()));
  for (std::int64_t i = 0; i < 64; ++i) {
    const Mix m = a.mixed(i, 2, scratch, out);
    partners.insert(m.partner);
    EXPECT_GE(m.weight, 0);
    EXPECT_LE(m.weight, 1);
    const auto one = training(a, i, 2), two = training(a, m.partner, 2);
    for (std::size_t k = 0; k < out.size(); ++k) EXPECT_NEAR(out[k], m.weight * one[k] + (1 - m.weight) * two[k], 1e-6);
  }
  EXPECT_EQ(partners.size(), 64u) << "every sample must be a partner exactly once";
}

TEST(augment, beta_draws_have_the_moments_of_beta) {
  for (const double alpha : {0.1, 0.4, 1., 3.}) {
    constexpr int kDraws = 20000;
    double sum = 0, squares = 0;
    for (int k = 0; k < kDraws; ++k) {
      const double x = beta_draw(alpha, 5, static_cast<std::uint64_t>(k));
      ASSERT_TRUE(x >= 0 && x <= 1) << x;
      sum += x, squares += (x - .5) * (x - .5);
    }
    const double variance = 1 / (4 * (2 * alpha + 1));
    EXPECT_NEAR(sum / kDraws, .5, 6 * std::sqrt(variance / kDraws)) << alpha;
    EXPECT_NEAR(squares / kDraws, variance, 6 * .25 / std::sqrt(kDraws)) << alpha;
  }
}

TEST(augment, random_resized_crops_stay_inside_and_differ) {
  const Known set(40, 28);
  const Augmenter a(set, {.height = 12, .width = 10, .random_resized = true, .normalise = false}, 3);
  EXPECT_EQ(a.pixels(), 12 * 10 * 3);
  std::set<std::vector<float>> seen;
  for (std::int64_t epoch = 0; epoch < 10; ++epoch)
    for (std::int64_t i = 0; i < 64; ++i) {
      const auto out = training(a, i, epoch);
      EXPECT_EQ(out, training(a, i, epoch));
      for (const float v : out) ASSERT_TRUE(v > 0 && v <= 1);  // black would come from outside
      seen.insert(out);
    }
  EXPECT_GT(seen.size(), 600u);
}

TEST(resize, the_same_size_is_the_same_picture_and_one_colour_stays_one) {
  const Known set(9, 13);
  Picture from, to;
  set.decode(1, from);
  resize(from, {0, 0, 9, 13}, 9, 13, to);
  EXPECT_EQ(to.pixels, from.pixels);
  from.pixels.assign(from.pixels.size(), 200);
  for (const auto& [h, w] : {std::pair{1, 1}, std::pair{4, 30}, std::pair{100, 2}}) {
    resize(from, {2, 3, 6, 7}, h, w, to);
    EXPECT_EQ(to.pixels, std::vector<std::uint8_t>(static_cast<std::size_t>(h * w * 3), 200));
  }
}

TEST(resize, the_middle_box_keeps_the_shape) {
  const auto is = [](Box b, int top, int left, int h, int w) {
    EXPECT_EQ((std::array{b.top, b.left, b.height, b.width}), (std::array{top, left, h, w}));
  };
  is(middle_box(100, 200, 32, 32), 0, 50, 100, 100);
  is(middle_box(200, 100, 32, 32), 50, 0, 100, 100);
  is(middle_box(100, 100, 20, 40), 25, 0, 50, 100);
  is(middle_box(1, 1, 32, 32), 0, 0, 1, 1);
}

}  // namespace
}  // namespace hpcdl::data

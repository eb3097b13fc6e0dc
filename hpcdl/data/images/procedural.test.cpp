#include "hpcdl/data/images/procedural.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <thread>

#include "hpcdl/core/error.h"
#include "hpcdl/io/crc32c.h"

namespace hpcdl::data {
namespace {

Picture decoded(const ImageSet& set, std::int64_t i) {
  Picture p;
  set.decode(i, p);
  return p;
}

TEST(procedural, an_image_is_a_function_of_seed_split_and_index) {
  const ProceduralImages train(100, 7, Split::train), longer(1000, 7, Split::train), test(100, 7, Split::test),
      other(100, 8, Split::train);
  std::set<std::vector<std::uint8_t>> all;
  for (std::int64_t i = 0; i < 100; ++i) {
    const auto p = decoded(train, i);
    ASSERT_EQ(p.pixels.size(), 3072u);
    EXPECT_EQ(p.pixels, decoded(longer, i).pixels);
    for (const auto* set : {&train, &test, &other}) all.insert(decoded(*set, i).pixels);
  }
  EXPECT_EQ(all.size(), 300u) << "all images must differ, within and between splits";
}

/// The result is bit for bit the same on every machine and with every compiler or version, so that all runs see the
/// same images.
TEST(procedural, images_are_the_same_everywhere) {
  const ProceduralImages set(50, 1, Split::train);
  std::uint32_t crc = 0;
  for (std::int64_t i = 0; i < 50; ++i) {
    const auto p = decoded(set, i);
    crc = io::crc32c(std::as_bytes(std::span(p.pixels)), crc);
  }
  EXPECT_EQ(crc, 2515304005u);
}

TEST(procedural, classes_come_equally_often_and_pixels_have_the_mean_and_deviation_that_it_says) {
  const ProceduralImages set(2000, 3, Split::train);
  std::array<int, 10> count{};
  std::array<double, 3> sum{}, squares{};
  for (std::int64_t i = 0; i < 2000; ++i) {
    ++count.at(static_cast<std::size_t>(set.target(i)));
    const auto p = decoded(set, i);
    for (std::size_t k = 0; k < p.pixels.size(); ++k)
      sum[k % 3] += p.pixels[k] / 255., squares[k % 3] += p.pixels[k] / 255. * (p.pixels[k] / 255.);
  }
  for (const int n : count) EXPECT_EQ(n, 200);
  for (std::size_t c = 0; c < 3; ++c) {
    const double n = 2000. * 1024, mean = sum[c] / n;
    EXPECT_NEAR(mean, set.info().normalisation.mean[c], 0.02);
    EXPECT_NEAR(std::sqrt(squares[c] / n - mean * mean), set.info().normalisation.std[c], 0.02);
  }
}

TEST(procedural, remembered_images_do_not_depend_on_the_first_reader) {
  const auto plain = open_images("", Split::test, {.procedural_test = 60, .remember = false}),
             kept = open_images("", Split::test, {.procedural_test = 60});
  EXPECT_EQ(kept->count(), 60);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::int64_t k = 0; k < 180; ++k) {
        const std::int64_t i = k * (2 * t + 1) % 60;  // in a different order, at least twice
        EXPECT_EQ(kept->target(i), plain->target(i));
        EXPECT_EQ(decoded(*kept, i).pixels, decoded(*plain, i).pixels) << i;
      }
    });
  for (auto& t : threads) t.join();
  EXPECT_THROW(decoded(*kept, 60), Error);
}

}  // namespace
}  // namespace hpcdl::data

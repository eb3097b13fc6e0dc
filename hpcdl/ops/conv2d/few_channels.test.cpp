// What the kernels for few channels read, checked on a host: every pair of terms of every window, and every tap of a
// group of pixels.

#include "hpcdl/ops/conv2d/few_channels.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>
#include <vector>

namespace hpcdl::cuda {
namespace {

Conv2dShape shape_of(std::int64_t h, std::int64_t w, std::int64_t i, std::int64_t kh, std::int64_t kw, Conv2d::Args a) {
  return Conv2d::shape({{2, h, w, i}, DType::bf16}, {{8, kh, kw, i}, DType::bf16}, a);
}

const Conv2dShape kShapes[] = {
    shape_of(224, 224, 3, 7, 7, {.stride = 2, .pad = 3}),
    shape_of(32, 32, 3, 3, 3, {.pad = 1}),
    shape_of(9, 11, 1, 5, 5, {.pad = 2}),
    shape_of(17, 18, 4, 3, 3, {.stride = 2, .pad = 1}),
    shape_of(8, 9, 2, 1, 1, {.stride = 2}),
    shape_of(30, 7, 5, 3, 4, {.pad = 3}),
    shape_of(13, 12, 7, 2, 3, {.stride = 3, .pad = 4}),
    shape_of(5, 5, 3, 5, 5, {.stride = 4}),
};

class FewChannels : public ::testing::TestWithParam<int> {
 protected:
  const Conv2dShape& shape() const { return kShapes[GetParam()]; }
};

// An element is identified by its number in the image plus one; surrounding zeros are 0.
TEST_P(FewChannels, APairHoldsTwoTermsOfItsWindow) {
  const auto& g = shape();
  for (const int rows : {1, 3, 8}) {
    const ImageRows r(g, rows);
    for (int row0 = 0; row0 < g.oh; row0 += rows) {
      std::vector<std::pair<int, int>> memory(static_cast<std::size_t>(r.all_words()));
      const auto name = [&](int row, int element) {
        return r.inside(row, element) ? row * r.elements + element + 1 : 0;
      };
      for (int i = 0; i < r.all_words(); ++i) {
        const auto place = r.place(i);
        const int row = place.row + row0 * r.stride;
        memory[static_cast<std::size_t>(i)] = {name(row, place.element), name(row, place.element + 1)};
      }
      for (int m = 0; m < r.pixels(row0); ++m) {
        const std::int64_t p = row0 + m / g.ow, q = m % g.ow;
        std::vector<int> met(static_cast<std::size_t>(g.k()));
        for (int k = 0; k < r.all_pairs() + 5; ++k) {
          const TermPair pair = r.pair(k);
          if (k >= r.all_pairs()) {
            EXPECT_EQ(pair.mask, 0u);
            continue;
          }
          const auto word = memory.at(static_cast<std::size_t>(r.window(m) + pair.at));
          const auto expect = [&](int term, int found) {
            const std::int64_t row = term / (g.kw * g.i), in = term % (g.kw * g.i), h = p * g.stride - g.pad + row,
                               w = q * g.stride - g.pad + in / g.i;
            const bool inside = h >= 0 && h < g.h && w >= 0 && w < g.w;
            ASSERT_EQ(found, inside ? (h * g.w + w) * g.i + in % g.i + 1 : 0)
                << "pixel " << p << ", " << q << ", term " << term;
            ++met.at(static_cast<std::size_t>(term));
          };
          expect(pair.term, word.first);
          if (pair.mask >> 16) expect(pair.term + 1, word.second);
        }
        for (const int times : met) ASSERT_EQ(times, 1);
      }
    }
  }
}

TEST_P(FewChannels, AGroupReachesAllItsTaps) {
  const auto& g = shape();
  const GroupTaps taps(g, g.kh);
  std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t>> met, want;  // row of x, of dy, of the kernel
  for (std::int64_t u = 0; u * g.stride < g.h; ++u)
    for (int phase = 0; phase < g.stride && u * g.stride + phase < g.h; ++phase)
      for (int a = 0; a < taps.count; ++a) {
        const std::int64_t p = u + taps.low + a, r = taps.kernel_row(phase, a);
        if (p >= 0 && p < g.oh && r >= 0 && r < g.kh) met.insert({u * g.stride + phase, p, r});
      }
  for (std::int64_t p = 0; p < g.oh; ++p)
    for (std::int64_t r = 0; r < g.kh; ++r)
      if (const std::int64_t h = p * g.stride - g.pad + r; h >= 0 && h < g.h) want.insert({h, p, r});
  EXPECT_EQ(met, want);
}

INSTANTIATE_TEST_SUITE_P(Shapes, FewChannels, ::testing::Range(0, static_cast<int>(std::size(kShapes))));

TEST(FewChannelsTiles, FitTheirRoomAndTheTurnsOfABlock) {
  const Conv2dShape stem =
      Conv2d::shape({{256, 224, 224, 3}, DType::bf16}, {{64, 7, 7, 3}, DType::bf16}, {.stride = 2, .pad = 3});
  const auto bytes = [&](int rows) { return std::int64_t{ImageRows(stem, rows).all_words()} * 4; };
  const int rows = rows_of_tiles(stem, 396, 256, 52 << 10, bytes);
  EXPECT_EQ(rows, 16);  // 1792 pixels are seven iterations of 256
  EXPECT_LE(bytes(rows), 52 << 10);
  EXPECT_EQ(rows_of_tiles(stem, 396, 256, bytes(1) - 1, bytes), 0);
}

}  // namespace
}  // namespace hpcdl::cuda

#include "hpcdl/ops/max_pool2d/max_pool2d.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "hpcdl/graph.h"
#include "hpcdl/testing/every_isa.h"
#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Expected;
using testing::Values;

void reference(std::span<Expected> out, const Values& x, const Windows& w) {
  for (std::int64_t at = 0; at < out[0].size(); ++at) {
    const auto c = at % w.channels, ow = at / w.channels % w.w.out, oh = at / w.channels / w.w.out % w.h.out,
               n = at / w.channels / w.w.out / w.h.out;
    double best = -INFINITY, place = 0, which = 0;
    for (int h = w.h.begin(static_cast<int>(oh)); h < w.h.end(static_cast<int>(oh)); ++h)
      for (int i = w.w.begin(static_cast<int>(ow)); i < w.w.end(static_cast<int>(ow)); ++i, ++place)
        if (const double v = x[((n * w.h.in + h) * w.w.in + i) * w.channels + c]; v > best) best = v, which = place;
    out[0][at] = best;
    out[1][at] = which;
  }
}

const auto strided = testing::op<MaxPool2d>({
    .cases =
        {
            {.in = {{1, 2, 2, 1}}},
            {.in = {{3, 4, 6, 5}}},
            {.in = {{2, 4, 6, 16}}},  // whole packs, adjacent windows
            {.in = {{2, 5, 7, 16}}},  // a row and a column outside all windows
            {.in = {{2, 7, 9, 33}}, .args = {.kernel = 3, .stride = 2, .pad = 1}},  // the stem of a ResNet
            {.in = {{1, 6, 5, 19}}, .args = {.kernel = 3, .stride = 1, .pad = 1}},
            {.in = {{2, 9, 4, 8}}, .args = {.kernel = 2, .stride = 3}},               // gaps between windows
            {.in = {{1, 17, 16, 3}}, .args = {.kernel = 16, .stride = 1, .pad = 8}},  // all 256 indices
            {.in = {{9, 32, 32, 64}}, .gradient = false},
            {.in = {{0, 4, 4, 8}}},
        },
    .reference = [](std::span<Expected> out, std::span<const Values> in,
                    const MaxPool2d::Args& a) { reference(out, in[0], detail::windows("", in[0].spec.shape, a)); },
    .reduction = [](std::span<const Spec>, const MaxPool2d::Args& a) { return std::int64_t{a.kernel} * a.kernel; },
});

const auto adaptive = testing::op<AdaptiveMaxPool2d>({
    .cases =
        {
            {.in = {{2, 3, 5, 7}}},
            {.in = {{2, 7, 5, 17}}, .args = {.height = 3, .width = 2}},
            {.in = {{1, 3, 2, 16}}, .args = {.height = 5, .width = 7}},
        },
    .reference =
        [](std::span<Expected> out, std::span<const Values> in, const AdaptiveMaxPool2d::Args& a) {
          reference(out, in[0], detail::bins("", in[0].spec.shape, a.height, a.width));
        },
    .reduction = [](std::span<const Spec> in, const AdaptiveMaxPool2d::Args&) { return in[0][1] * in[0][2]; },
});

/// torch: the first of equal values, and NaN if the window contains one.
TEST(MaxPool2dTest, TiesAndNaN) {
  const float nan = NAN, inf = INFINITY;
  const float x[] = {1, 1, 1, 1, -inf, -inf, -inf, -inf, nan, 1,
                     2, 3, 1, 2, nan,  3,    1,    2,    3,   nan};  // five images of 2 x 2
  float y[5];
  std::uint8_t which[5];
  Pool pool(1);
  Stream s(pool);
  testing::for_each_isa([&] {
    MaxPool2d::forward(s, Tensor(y, {{5, 1, 1, 1}, DType::f32}), Tensor(which, {{5, 1, 1, 1}, DType::u8}),
                       View(x, {{5, 2, 2, 1}, DType::f32}), {});
    EXPECT_EQ(y[0], 1);
    EXPECT_EQ(which[0], 0);
    EXPECT_EQ(y[1], -inf);
    EXPECT_EQ(which[1], 0);
    const int places[] = {0, 2, 3};
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(std::isnan(y[2 + i])) << i;
      EXPECT_EQ(which[2 + i], places[i]);
    }
  });
}

/// A gradient too large for the cache is written with non-temporal stores: its bits equal, image by image, those of a
/// small one.
TEST(MaxPool2dTest, LargeGradientsHaveTheBitsOfSmallOnes) {
  constexpr std::int64_t n = 65, side = 32, channels = 64, image = side * side * channels;
  std::vector<float> dy(n * image / 4), dx(n * image, NAN), one(image);
  std::vector<std::uint8_t> which(dy.size());
  for (std::size_t i = 0; i < dy.size(); ++i)
    dy[i] = static_cast<float>(i % 8191) - 4000, which[i] = static_cast<std::uint8_t>(i * 7 / 3 % 4);
  Pool pool(2);
  Stream s(pool);
  const auto backward = [&](float* out, std::int64_t first, std::int64_t count) {
    const auto at = static_cast<std::size_t>(first * image / 4);
    const Shape small{count, side / 2, side / 2, channels};
    MaxPool2d::backward(s, Grad(Tensor(out, {{count, side, side, channels}, DType::f32}), Write::overwrite),
                        View(&which[at], {small, DType::u8}), View(&dy[at], {small, DType::f32}), {});
  };
  backward(dx.data(), 0, n);
  for (std::int64_t i : {0, 31, 32, 64}) {
    backward(one.data(), i, 1);
    EXPECT_EQ(std::memcmp(one.data(), &dx[static_cast<std::size_t>(i * image)], image * sizeof(float)), 0) << i;
  }
}

TEST(MaxPool2dTest, RefusesWindowsThatDoNotFit) {
  Graph g;
  const Var x = g.input("x", {{1, 4, 4, 3}, DType::f32}), large = g.input("l", {{1, 40, 40, 3}, DType::f32});
  EXPECT_THROW(max_pool2d(x, {.kernel = 5}), Error);
  EXPECT_THROW(max_pool2d(x, {.kernel = 0}), Error);
  EXPECT_THROW(max_pool2d(x, {.kernel = 3, .stride = 1, .pad = 2}), Error);
  EXPECT_THROW(max_pool2d(large, {.kernel = 17}), Error) << "its places do not fit into a byte";
  EXPECT_THROW(adaptive_max_pool2d(x, {.height = 0}), Error);
  EXPECT_THROW(max_pool2d(g.input("m", {{4, 4}, DType::f32})), Error);
}

}  // namespace
}  // namespace hpcdl

#include "hpcdl/ops/adaptive_avg_pool2d/adaptive_avg_pool2d.h"

#include <gtest/gtest.h>

#include <cmath>

#include "hpcdl/graph.h"
#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Expected;
using testing::Values;

/// torch's bins in real arithmetic: floor(o * in / out) to ceil((o + 1) * in / out).
void reference(Expected& y, const Values& x) {
  const auto channels = y.spec[3];
  for (std::int64_t at = 0; at < y.size(); ++at) {
    const auto c = at % channels, ow = at / channels % y.spec[2], oh = at / channels / y.spec[2] % y.spec[1],
               n = at / channels / y.spec[2] / y.spec[1];
    const auto bounds = [&](std::int64_t o, int axis) {
      const double step = static_cast<double>(x.spec[axis]) / static_cast<double>(y.spec[axis]);
      return std::pair(static_cast<std::int64_t>(std::floor(static_cast<double>(o) * step + 1e-9)),
                       static_cast<std::int64_t>(std::ceil(static_cast<double>(o + 1) * step - 1e-9)));
    };
    const auto [h0, h1] = bounds(oh, 1);
    const auto [w0, w1] = bounds(ow, 2);
    for (auto h = h0; h < h1; ++h)
      for (auto w = w0; w < w1; ++w)
        y[at] += x[((n * x.spec[1] + h) * x.spec[2] + w) * channels + c] / static_cast<double>((h1 - h0) * (w1 - w0));
  }
}

const auto spec = testing::op<AdaptiveAvgPool2d>({
    .cases =
        {
            {.in = {{1, 1, 1, 1}}},
            {.in = {{3, 8, 8, 67}}},
            {.in = {{2, 7, 7, 512}}, .gradient = false},
            {.in = {{2, 7, 5, 17}}, .args = {.height = 3, .width = 2}},
            {.in = {{2, 10, 13, 6}}, .args = {.height = 7, .width = 7}},
            {.in = {{1, 3, 2, 16}}, .args = {.height = 5, .width = 7}},  // more bins than pixels
            {.in = {{0, 4, 4, 8}}},
        },
    .reference = [](std::span<Expected> out, std::span<const Values> in,
                    const AdaptiveAvgPool2d::Args&) { reference(out[0], in[0]); },
    .reduction = [](std::span<const Spec> in, const AdaptiveAvgPool2d::Args&) { return in[0][1] * in[0][2]; },
});

TEST(AdaptiveAvgPool2dTest, RefusesOutputsWithoutPixels) {
  Graph g;
  EXPECT_THROW(adaptive_avg_pool2d(g.input("x", {{1, 4, 4, 3}, DType::f32}), {.width = 0}), Error);
}

}  // namespace
}  // namespace hpcdl

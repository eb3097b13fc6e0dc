#include "hpcdl/ops/avg_pool2d/avg_pool2d.h"

#include <gtest/gtest.h>

#include <vector>

#include "hpcdl/graph.h"
#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Expected;
using testing::Values;

/// Follows torch's definition, not WindowAxis.
void reference(Expected& y, const Values& x, const AvgPool2d::Args& a) {
  const std::int64_t channels = y.spec[3], stride = a.stride ? a.stride : a.kernel;
  for (std::int64_t at = 0; at < y.size(); ++at) {
    const auto c = at % channels, ow = at / channels % y.spec[2], oh = at / channels / y.spec[2] % y.spec[1],
               n = at / channels / y.spec[2] / y.spec[1];
    double sum = 0, inside = 0;
    for (auto h = oh * stride - a.pad; h < oh * stride - a.pad + a.kernel; ++h)
      for (auto w = ow * stride - a.pad; w < ow * stride - a.pad + a.kernel; ++w)
        if (h >= 0 && h < x.spec[1] && w >= 0 && w < x.spec[2])
          sum += x[((n * x.spec[1] + h) * x.spec[2] + w) * channels + c], ++inside;
    y[at] = sum / (a.count_include_pad ? static_cast<double>(a.kernel * a.kernel) : inside);
  }
}

const auto strided = testing::op<AvgPool2d>({
    .cases =
        {
            {.in = {{1, 2, 2, 1}}},
            {.in = {{3, 4, 6, 5}}},
            {.in = {{2, 5, 7, 16}}},
            {.in = {{2, 7, 9, 33}}, .args = {.kernel = 3, .stride = 2, .pad = 1}},
            {.in = {{2, 7, 9, 70}}, .args = {.kernel = 3, .stride = 2, .pad = 1, .count_include_pad = false}},
            {.in = {{1, 6, 5, 19}}, .args = {.kernel = 3, .stride = 1, .pad = 1}},
            {.in = {{2, 9, 4, 8}}, .args = {.kernel = 2, .stride = 3}},
            {.in = {{9, 32, 32, 64}}, .gradient = false},
            {.in = {{2, 3, 140, 9}}},  // rows of more pixels than a block of the GPU's gradient processes
            {.in = {{2, 9, 7, 260}},
             .args = {.kernel = 5, .stride = 2, .pad = 2},
             .gradient = false},  // several threads divide a window's pixels
            {.in = {{2, 9, 8, 21}}, .args = {.kernel = 4, .pad = 1, .count_include_pad = false}},
            {.in = {{0, 4, 4, 8}}},
        },
    .reference = [](std::span<Expected> out, std::span<const Values> in,
                    const AvgPool2d::Args& a) { reference(out[0], in[0], a); },
    .reduction = [](std::span<const Spec>, const AvgPool2d::Args& a) { return std::int64_t{a.kernel} * a.kernel; },
});

TEST(WindowAxis, TheOutputsOfAnInputAreThoseWhoseWindowsHoldIt) {
  std::vector<WindowAxis> axes;
  for (int in = 1; in < 12; ++in) {
    for (int out = 1; out < 12; ++out) axes.push_back({.in = in, .out = out});
    for (int kernel = 1; kernel <= in; ++kernel)
      for (int stride = 1; stride < 5; ++stride)
        for (int pad = 0; 2 * pad <= kernel; ++pad)
          axes.push_back(detail::windows("", {1, in, in, 1}, {kernel, stride, pad}).h);
  }
  for (const auto& a : axes)
    for (int i = 0; i < a.in; ++i)
      for (int o = 0; o < a.out; ++o) {
        ASSERT_LT(a.begin(o), a.end(o));
        ASSERT_EQ(a.begin(o) <= i && i < a.end(o), a.first(i) <= o && o < a.last(i))
            << a.in << " " << a.out << " " << a.kernel << " " << a.stride << " " << a.pad;
      }
}

TEST(AvgPool2dTest, RefusesWindowsThatDoNotFit) {
  Graph g;
  const Var x = g.input("x", {{1, 4, 4, 3}, DType::f32});
  EXPECT_THROW(avg_pool2d(x, {.kernel = 5}), Error);
  EXPECT_THROW(avg_pool2d(x, {.kernel = 2, .stride = -1}), Error);
}

}  // namespace
}  // namespace hpcdl

#include "hpcdl/ops/conv2d/conv2d.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Input;
using testing::Ref;

const auto f32 = DType::f32;

void reference(std::span<Ref> out, std::span<const Ref> in, const Conv2d::Args& a) {
  const Ref &x = in[0], &w = in[1], &bias = in[2];
  const auto c = Conv2d::shape({x.shape, f32}, {w.shape, f32}, a);
  std::int64_t at = 0;
  for (std::int64_t n = 0; n < c.n; ++n)
    for (std::int64_t p = 0; p < c.oh; ++p)
      for (std::int64_t q = 0; q < c.ow; ++q)
        for (std::int64_t o = 0; o < c.o; ++o, ++at) {
          double sum = bias ? bias[o] : 0;
          for (std::int64_t r = 0; r < c.kh; ++r)
            for (std::int64_t s = 0; s < c.kw; ++s) {
              const auto row = p * a.stride - a.pad + r * a.dilation, col = q * a.stride - a.pad + s * a.dilation;
              if (row < 0 || row >= c.h || col < 0 || col >= c.w) continue;
              for (std::int64_t i = 0; i < c.i; ++i) sum += x[((n * c.h + row) * c.w + col) * c.i + i] * w[((o * c.kh + r) * c.kw + s) * c.i + i];
            }
          out[0][at] = sum;
        }
}

std::int64_t reduction(std::span<const Spec> in, const Conv2d::Args& a) {
  const auto c = Conv2d::shape(in[0], in[1], a);
  return std::max({c.k(), c.taps() * c.o, c.pixels()});
}

const auto spec = testing::op<Conv2d>({
    .cases =
        {
            {.in = {{1, 1, 1, 1}, {1, 1, 1, 1}, {1}}},
            {.in = {{2, 4, 5, 64}, {17, 1, 1, 64}, {17}}},
            {.in = {{2, 5, 7, 5}, {9, 1, 1, 5}, Input::none()}, .args = {.stride = 2}},
            {.in = {{2, 7, 9, 3}, {20, 3, 3, 3}, {20}}, .args = {.pad = 1}},
            {.in = {{1, 6, 5, 64}, {33, 3, 3, 64}, Input::none()}, .args = {.pad = 1}},
            {.in = {{2, 9, 8, 5}, {7, 3, 3, 5}, {7}}, .args = {.stride = 2, .pad = 1}},
            {.in = {{1, 12, 10, 16}, {48, 3, 3, 16}, {48}}, .args = {.stride = 2, .pad = 1}},
            {.in = {{2, 15, 13, 3}, {6, 7, 7, 3}, {6}}, .args = {.stride = 2, .pad = 3}},
            {.in = {{1, 9, 11, 4}, {5, 3, 3, 4}, {5}}, .args = {.pad = 2, .dilation = 2}},
            {.in = {{1, 10, 9, 3}, {4, 3, 2, 3}, {4}}, .args = {.stride = 3, .pad = 2, .dilation = 2}},
            {.in = {{1, 5, 5, 1}, {3, 2, 4, 1}, {3}}, .args = {.pad = 3}},  // pads wider than the kernel reaches
            {.in = {{1, 3, 4, 2}, {2, 3, 4, 2}, Input::none()}},            // one output
            {.in = {{1, 5, 6, 300}, {280, 3, 3, 300}, {280}}, .args = {.pad = 1}, .gradient = false},
            {.in = {{1, 8, 8, 16}, Input{16, 3, 3, 16}.as(f32), Input{16}.as(f32)}, .args = {.pad = 1}},  // master weights
            {.in = {{0, 6, 6, 8}, {3, 3, 3, 8}, {3}}, .args = {.pad = 1}},
            {.in = {{2, 9, 8, 64}, {72, 3, 3, 64}, {72}}, .args = {.stride = 2, .pad = 1}, .aligned = true},
            {.in = {{2, 10, 9, 16}, {24, 3, 3, 16}, {24}}, .args = {.pad = 2, .dilation = 2}, .aligned = true},
        },
    .reference = reference,
    .reduction = reduction,
    .condition = 10,  // products of two outliers (10 x 10) are 10 times the largest input that the allowed error counts from
});

TEST(Conv2dChecks, SaysWhatIsWrong) {
  const Spec x{{2, 8, 6, 3}, f32}, w{{4, 3, 3, 3}, f32};
  EXPECT_EQ(Conv2d::infer(x, w, {}, {}), (Spec{{2, 6, 4, 4}, f32}));
  EXPECT_EQ(Conv2d::infer(x, w, {}, {.stride = 2, .pad = 1}), (Spec{{2, 4, 3, 4}, f32}));
  EXPECT_EQ(Conv2d::infer(x, w, {{4}, f32}, {.pad = 2, .dilation = 2}), (Spec{{2, 8, 6, 4}, f32}));
  EXPECT_THROW(Conv2d::infer({{8, 6, 3}, f32}, w, {}, {}), Error);
  EXPECT_THROW(Conv2d::infer({{2, 8, 6, 3}, DType::i32}, w, {}, {}), Error);
  EXPECT_THROW(Conv2d::infer(x, {{4, 3, 3, 5}, f32}, {}, {}), Error);
  EXPECT_THROW(Conv2d::infer(x, {{4, 27}, f32}, {}, {}), Error);
  EXPECT_THROW(Conv2d::infer(x, w, {{3}, f32}, {}), Error);
  EXPECT_THROW(Conv2d::infer(x, w, {}, {.stride = 0}), Error);
  EXPECT_THROW(Conv2d::infer(x, w, {}, {.pad = -1}), Error);
  EXPECT_THROW(Conv2d::infer(x, w, {}, {.dilation = 3}), Error);  // reaches 7 columns of 6
  EXPECT_THROW(Conv2d::infer(x, {{0, 3, 3, 3}, f32}, {}, {}), Error);
}

}  // namespace
}  // namespace hpcdl

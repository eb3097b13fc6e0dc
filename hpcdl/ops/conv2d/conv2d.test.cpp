#include "hpcdl/ops/conv2d/conv2d.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/core/tolerance.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/every_isa.h"
#include "hpcdl/testing/op_spec.h"
#include "hpcdl/testing/random_tensor.h"

namespace hpcdl {
namespace {

using testing::Expected;
using testing::for_each_isa;
using testing::Input;
using testing::random_tensor;
using testing::Values;

const auto f32 = DType::f32;

void reference(std::span<Expected> out, std::span<const Values> in, const Conv2d::Args& a) {
  const Values &x = in[0], &w = in[1], &bias = in[2];
  const auto c = Conv2d::shape(x.spec, w.spec, a);
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
              for (std::int64_t i = 0; i < c.i; ++i)
                sum += x[((n * c.h + row) * c.w + col) * c.i + i] * w[((o * c.kh + r) * c.kw + s) * c.i + i];
            }
          out[0][at] = sum;
        }
}

std::int64_t reduction(std::span<const Spec> in, const Conv2d::Args& a) {
  const auto c = Conv2d::shape(in[0], in[1], a);
  return std::max({c.k(), c.taps() * c.o, c.pixels()});
}

const auto
    plain =
        testing::op<Conv2d>(
            {
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
                        {.in = {{1, 5, 5, 1}, {3, 2, 4, 1}, {3}}, .args = {.pad = 3}},  // padding wider than the kernel
                        {.in = {{1, 3, 4, 2}, {2, 3, 4, 2}, Input::none()}},            // one output
                        {.in = {{1, 5, 6, 300}, {280, 3, 3, 300}, {280}}, .args = {.pad = 1}, .gradient = false},
                        {.in = {{1, 8, 8, 16}, {16, 3, 3, 16}, Input{16}.as(f32)}, .args = {.pad = 1}},
                        {.in = {{40, 7, 6, 17}, {19, 3, 3, 17}, {19}},
                         .args = {.pad = 1},
                         .gradient = false},  // several units and splits
                        {.in = {{40, 9, 10, 3}, {19, 3, 3, 3}, {19}},
                         .args = {.stride = 2, .pad = 1},
                         .gradient = false},
                        {.in = {{1, 3, 3, 1100}, {33, 3, 3, 1100}, Input::none()},
                         .args = {.pad = 1},
                         .gradient = false},  // a tap longer than a block of k
                        {.in = {{5, 14, 13, 37}, {43, 3, 3, 37}, {43}},
                         .args = {.pad = 1},
                         .gradient = false},  // Winograd with partial tiles
                        {.in = {{3, 18, 22, 33}, {64, 3, 3, 33}, Input::none()}, .gradient = false},
                        {.in = {{2, 22, 21, 32}, {33, 3, 3, 32}, {33}}, .args = {.pad = 2}, .gradient = false},
                        {.in = {{1, 16, 8, 64}, {64, 3, 3, 64}, {64}},
                         .args = {.pad = 1},
                         .gradient = false},  // large enough for a GPU's f32 parts
                        {.in = {{1, 16, 8, 64}, {64, 3, 3, 64}, {64}},
                         .args = {.pad = 1},
                         .gradient = false,
                         .aligned = true},  // for cuDNN
                        {.in = {{2, 9, 8, 64}, {72, 3, 3, 64}, {72}}, .args = {.stride = 2, .pad = 1}, .aligned = true},
                        {.in = {{2, 10, 9, 16}, {24, 3, 3, 16}, {24}},
                         .args = {.pad = 2, .dilation = 2},
                         .aligned = true},
                        {.in = {{0, 6, 6, 8}, {3, 3, 3, 8}, {3}}, .args = {.pad = 1}},
                    },
                .reference = reference,
                .reduction = reduction,
                .condition = 10,  // products of two outliers (10 x 10) are 10 times the largest input, which the
                                  // allowed error is relative to
            });

/// Results of conv2d for these tensors: y, dx, dw, dbias.
std::vector<OwnedTensor> all_results(int threads, const Conv2d::Args& a, const OwnedTensor& x, const OwnedTensor& w,
                                     const OwnedTensor& bias, const OwnedTensor& dy) {
  Pool pool(threads);
  Stream s(pool);
  std::vector<OwnedTensor> r;
  for (const Spec& like : {dy.tensor.spec(), x.tensor.spec(), w.tensor.spec(), bias.tensor.spec()})
    r.emplace_back(like);
  Conv2d::forward(s, r[0].tensor, x.tensor, w.tensor, bias.tensor, a);
  Conv2d::backward(s, {r[1].tensor, Write::overwrite}, {r[2].tensor, Write::overwrite}, {r[3].tensor, Write::overwrite},
                   x.tensor, w.tensor, dy.tensor, a);
  return r;
}

bool same_bits(const OwnedTensor& a, const OwnedTensor& b) {
  return std::memcmp(a.tensor.data(), b.tensor.data(), static_cast<std::size_t>(a.tensor.bytes())) == 0;
}

// A float master weight with bf16 images acts like its rounded copy.
TEST(Conv2d, MasterWeightActsAsItsRoundedCopy) {
  const auto x = random_tensor({{2, 6, 7, 5}, DType::bf16}, 1), dy = random_tensor({{2, 6, 7, 9}, DType::bf16}, 3),
             bias = random_tensor({{9}, f32}, 4);
  const auto half = random_tensor({{9, 3, 3, 5}, DType::bf16}, 2), full = random_tensor({{9, 3, 3, 5}, f32}, 2);
  for_each_isa([&] {
    const auto a = all_results(2, {.pad = 1}, x, half, bias, dy), b = all_results(2, {.pad = 1}, x, full, bias, dy);
    EXPECT_TRUE(same_bits(a[0], b[0]) && same_bits(a[1], b[1]));
    for (std::int64_t i = 0; i < full.tensor.size(); ++i)
      ASSERT_EQ(a[2].tensor.ptr<bf16>()[i].bits, bf16(b[2].tensor.ptr<float>()[i]).bits);
  });
}

/// dx, dw and dbias by definition.
std::vector<Expected> naive_gradients(const Conv2dShape& c, const OwnedTensor& x, const OwnedTensor& w,
                                      const OwnedTensor& dy) {
  std::vector<Expected> g;
  for (const Shape& s : {x.tensor.shape(), w.tensor.shape(), Shape{c.o}}) g.emplace_back(Spec{s, f32});
  const auto at = [](const OwnedTensor& t, std::int64_t i) { return static_cast<double>(t.tensor.ptr<float>()[i]); };
  for (std::int64_t pixel = 0; pixel < c.pixels(); ++pixel)
    for (std::int64_t o = 0; o < c.o; ++o) {
      const double d = at(dy, pixel * c.o + o);
      g[2][o] += d;
      for (std::int64_t tap = 0; tap < c.taps(); ++tap) {
        const auto row = pixel / c.ow % c.oh * c.stride - c.pad + tap / c.kw * c.dilation,
                   col = pixel % c.ow * c.stride - c.pad + tap % c.kw * c.dilation;
        if (row < 0 || row >= c.h || col < 0 || col >= c.w) continue;
        const auto in = ((pixel / c.ow / c.oh * c.h + row) * c.w + col) * c.i, weight = (o * c.taps() + tap) * c.i;
        for (std::int64_t i = 0; i < c.i; ++i)
          g[0][in + i] += d * at(w, weight + i), g[1][weight + i] += d * at(x, in + i);
      }
    }
  return g;
}

// Shapes too large for finite differences: those that use Winograd's algorithm and several splits.
TEST(Conv2d, GradientsOfLargerShapes) {
  struct Case {
    Shape x;
    std::int64_t outputs;
    Conv2d::Args args;
    double amplification = 1;
  };
  constexpr double kWinograd = 7.3;  // derived in winograd.h
  for (const Case& k : {Case{{5, 14, 13, 37}, 43, {.pad = 1}, kWinograd}, Case{{3, 18, 22, 33}, 64, {}, kWinograd},
                        Case{{2, 22, 21, 32}, 33, {.pad = 2}, kWinograd},
                        Case{{2, 30, 31, 19}, 21, {.stride = 2, .pad = 1}}, Case{{3, 30, 31, 3}, 21, {.pad = 1}}}) {
    const auto x = random_tensor({k.x, f32}, 1), w = random_tensor({{k.outputs, 3, 3, k.x[3]}, f32}, 2),
               bias = random_tensor({{k.outputs}, f32}, 3);
    const auto c = Conv2d::shape(x.tensor.spec(), w.tensor.spec(), k.args);
    const auto dy = random_tensor({{c.n, c.oh, c.ow, c.o}, f32}, 4);
    const auto want = naive_gradients(c, x, w, dy);
    const double terms = static_cast<double>(std::max({c.taps() * c.o, c.pixels()}));
    for_each_isa([&] {
      const auto got = all_results(2, k.args, x, w, bias, dy);
      for (std::size_t g = 0; g < want.size(); ++g) {
        const double top = std::fabs(*std::max_element(want[g].value.begin(), want[g].value.end(),
                                                       [](double a, double b) { return std::fabs(a) < std::fabs(b); }));
        for (std::int64_t i = 0; i < got[g + 1].tensor.size(); ++i)
          ASSERT_NEAR(static_cast<double>(got[g + 1].tensor.ptr<float>()[i]), want[g][i],
                      allowed_error(f32, std::fabs(want[g][i]), terms, k.amplification * top))
              << "gradient " << g << " at " << i;
      }
    });
  }
}

// Enough work for several units, passes and splits on every thread.
TEST(Conv2d, ThreadsDoNotChangeBits) {
  const auto x = random_tensor({{9, 24, 24, 36}, f32}, 1), w = random_tensor({{40, 3, 3, 36}, f32}, 2),
             bias = random_tensor({{40}, f32}, 3);
  for (int stride : {1, 2}) {
    const auto dy = random_tensor({{9, 24 / stride, 24 / stride, 40}, f32}, 4);
    const auto one = all_results(1, {.stride = stride, .pad = 1}, x, w, bias, dy);
    for (int threads : {2, 3, 5}) {
      const auto more = all_results(threads, {.stride = stride, .pad = 1}, x, w, bias, dy);
      for (std::size_t i = 0; i < one.size(); ++i)
        EXPECT_TRUE(same_bits(one[i], more[i])) << "result " << i << " with " << threads << " threads";
    }
  }
}

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
  EXPECT_THROW(Conv2d::infer(x, w, {}, {.dilation = 3}), Error);  // spans 7 columns of 6
  EXPECT_THROW(Conv2d::infer(x, {{0, 3, 3, 3}, f32}, {}, {}), Error);
}

}  // namespace
}  // namespace hpcdl

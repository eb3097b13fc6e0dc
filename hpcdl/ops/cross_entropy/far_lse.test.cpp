// Gradients of rows far from 0, as masks of -1e10 and of the lowest float produce them: on every instruction set and on
// a GPU, against loops in double.

#include "hpcdl/ops/cross_entropy/far_lse.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/ops/cross_entropy/cross_entropy.h"
#include "hpcdl/ops/cross_entropy/smooth.h"
#include "hpcdl/ops/lm_head_gradient/lm_head_gradient.h"
#include "hpcdl/ops/lm_head_loss/lm_head_loss.h"
#include "hpcdl/testing/every_isa.h"

namespace hpcdl {
namespace {

constexpr float kMost = std::numeric_limits<float>::max();
constexpr float kLevels[] = {-1e10f, -1e30f, -kMost, 3e38f, 1e6f, 70000.0f, -5000.0f, 3.0f};
constexpr std::int64_t kPatterns = 3, kRows = kPatterns * static_cast<std::int64_t>(std::size(kLevels));

/// Column c of row r: a constant level; the level plus small steps; the level next to ordinary elements and another
/// mask.
float element(std::int64_t r, std::int64_t c) {
  const float level = kLevels[r / kPatterns];
  switch (r % kPatterns) {
    case 0: return level;
    case 1: return level + static_cast<float>(c % 3);
    default: return c % 3 == 0 ? level : c % 3 == 1 ? -1e10f : static_cast<float>(c % 7);
  }
}
std::int32_t target(std::int64_t r, std::int64_t cols) {
  return r % 5 == 4 ? -1 : static_cast<std::int32_t>(r * 31 % cols);
}

/// softmax(x) of row r, in double.
std::vector<double> softmax(const OwnedTensor& x, std::int64_t r) {
  const std::int64_t n = x.tensor.cols();
  const float* row = x.tensor.ptr<float>() + r * n;
  const double top = static_cast<double>(*std::max_element(row, row + n));
  double sum = 0;
  std::vector<double> p(static_cast<std::size_t>(n));
  for (std::size_t c = 0; c < p.size(); ++c) sum += p[c] = std::exp(static_cast<double>(row[c]) - top);
  for (double& e : p) e /= sum;
  return p;
}

/// `got`: the gradient of logits, times `upstream`.
void expect_gradient(const OwnedTensor& x, const OwnedTensor& got, double upstream, double smoothing) {
  const std::int64_t n = x.tensor.cols();
  for (std::int64_t r = 0; r < kRows; ++r) {
    const auto p = softmax(x, r);
    const std::int32_t t = target(r, n);
    for (std::int64_t c = 0; c < n; ++c) {
      const double share = smoothing / static_cast<double>(n) + (c == t ? 1 - smoothing : 0);
      const double want = t < 0 ? 0 : (p[static_cast<std::size_t>(c)] - share) * upstream;
      ASSERT_NEAR(static_cast<double>(got.tensor.ptr<float>()[r * n + c]), want,
                  4e-4 * upstream * p[static_cast<std::size_t>(c)] + 1e-6)
          << "row " << r << " of " << n << " columns, column " << c;
    }
  }
}

struct Operands {
  OwnedTensor x, target, x_there, target_there;

  Operands(Stream& s, std::int64_t cols)
      : x({{kRows, cols}, DType::f32}),
        target({{kRows}, DType::i32}),
        x_there(x.tensor.spec(), s.device()),
        target_there(target.tensor.spec(), s.device()) {
    for (std::int64_t r = 0; r < kRows; ++r) {
      target.tensor.ptr<std::int32_t>()[r] = hpcdl::target(r, cols);
      for (std::int64_t c = 0; c < cols; ++c) x.tensor.ptr<float>()[r * cols + c] = element(r, c);
    }
    copy(s, x_there.tensor, x.tensor), copy(s, target_there.tensor, target.tensor);
  }
};

void expect_cross_entropy(Stream& s, std::int64_t cols, float smoothing, bool in_place) {
  Operands o(s, cols);
  const Spec one{{1}, DType::f32}, rows{{kRows}, DType::f32};
  OwnedTensor loss(one, s.device()), count(one, s.device()), lse(rows, s.device()), row_loss(rows, s.device()),
      dx(o.x.tensor.spec(), s.device()), upstream(one), upstream_there(one, s.device()), back(o.x.tensor.spec());
  *upstream.tensor.ptr<float>() = 1.5f;
  copy(s, upstream_there.tensor, upstream.tensor);
  const SmoothCrossEntropy::Args args{smoothing};
  SmoothCrossEntropy::forward(s, loss.tensor, count.tensor, lse.tensor, o.x_there.tensor, o.target_there.tensor, {},
                              row_loss.tensor, args);
  const Tensor to = in_place ? o.x_there.tensor : dx.tensor;
  SmoothCrossEntropy::backward(s, Grad(to, Write::overwrite), o.x_there.tensor, o.target_there.tensor, {}, lse.tensor,
                               upstream_there.tensor, args);
  copy(s, back.tensor, to);
  s.synchronize();
  expect_gradient(o.x, back, 1.5, static_cast<double>(smoothing));
}

/// Logits are h times the first column of the weights' rows, one per row: the op's gradient for W is the gradient of
/// logits.
void expect_lm_head(Stream& s, std::int64_t cols, bool keep, bool at_once) {
  Operands o(s, cols);
  // h = one-hot rows, W^T = logits: h W^T is exact, and dW[v][r] is the gradient of logit v of row r.
  OwnedTensor h({{kRows, kRows}, DType::f32}), w({{cols, kRows}, DType::f32}), dw(w.tensor.spec()),
      got(o.x.tensor.spec());
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t i = 0; i < kRows; ++i) h.tensor.ptr<float>()[r * kRows + i] = i == r;
    for (std::int64_t c = 0; c < cols; ++c) w.tensor.ptr<float>()[c * kRows + r] = element(r, c);
  }
  const auto there = [&](const OwnedTensor& t) {
    OwnedTensor copied(t.tensor.spec(), s.device());
    copy(s, copied.tensor, t.tensor);
    return copied;
  };
  const auto make = [&](const Spec& spec) { return OwnedTensor(spec, s.device()); };
  const OwnedTensor h_there = there(h), w_there = there(w);
  OwnedTensor dw_there = make(dw.tensor.spec()), upstream({{1}, DType::f32});
  *upstream.tensor.ptr<float>() = 1;
  const OwnedTensor upstream_there = there(upstream);
  const Spec hs = h.tensor.spec(), ws = w.tensor.spec(), ts = o.target.tensor.spec();
  if (at_once) {
    const auto outs = LmHeadGradient::infer(hs, ws, ts, {});
    const auto scratch = LmHeadGradient::scratch(hs, ws, ts, {});
    OwnedTensor loss = make(outs[0]), count = make(outs[1]), dh = make(outs[2]), unit_dw = make(outs[3]),
                logits = make(scratch[0]), stats = make(scratch[1]);
    LmHeadGradient::forward(s, loss.tensor, count.tensor, dh.tensor, unit_dw.tensor, h_there.tensor, w_there.tensor,
                            o.target_there.tensor, logits.tensor, stats.tensor, {});
    LmHeadGradient::backward(s, Grad(), Grad(dw_there.tensor, Write::overwrite), dh.tensor, unit_dw.tensor,
                             upstream_there.tensor, {});
    s.synchronize();
  } else {
    const LmHeadLoss::Args args{.keep_logits = keep};
    const auto outs = LmHeadLoss::infer(hs, ws, ts, args);
    const auto scratch = LmHeadLoss::scratch(hs, ws, ts, args), more = LmHeadLoss::backward_scratch(hs, ws, ts, args);
    OwnedTensor loss = make(outs[0]), count = make(outs[1]), lse = make(outs[2]), logits = make(outs[3]),
                chunk = make(scratch[0]), stats = make(scratch[1]), gradient = make(more[0]), sum = make(more[1]);
    LmHeadLoss::forward(s, loss.tensor, count.tensor, lse.tensor, logits.tensor, h_there.tensor, w_there.tensor,
                        o.target_there.tensor, chunk.tensor, stats.tensor, args);
    LmHeadLoss::backward(s, Grad(), Grad(dw_there.tensor, Write::overwrite), h_there.tensor, w_there.tensor,
                         o.target_there.tensor, lse.tensor, logits.tensor, upstream_there.tensor, gradient.tensor,
                         sum.tensor, args);
    s.synchronize();
  }
  copy(s, dw.tensor, dw_there.tensor);
  s.synchronize();
  for (std::int64_t r = 0; r < kRows; ++r)
    for (std::int64_t c = 0; c < cols; ++c)
      got.tensor.ptr<float>()[r * cols + c] = dw.tensor.ptr<float>()[c * kRows + r];
  expect_gradient(o.x, got, 1, 0);
}

void expect_all_right(Stream& s) {
  for (const std::int64_t cols : {5, 40, 130, 1000, 2100, 9001, 70000})
    for (const float smoothing : {0.0f, 0.1f})
      for (const bool in_place : {false, true}) expect_cross_entropy(s, cols, smoothing, in_place);
  for (const std::int64_t cols : {40, 2500})
    for (const bool keep : {false, true}) expect_lm_head(s, cols, keep, false);
  for (const std::int64_t cols : {40, 2500}) expect_lm_head(s, cols, false, true);
}

TEST(FarLse, GradientsAreRightOnEveryInstructionSet) {
  Pool pool(2);
  StepParams params;
  Stream s(pool, &params);
  testing::for_each_isa([&] { expect_all_right(s); });
}

TEST(FarLse, GradientsAreRightOnAGpu) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  StepParams params;
  Stream s(Device::cuda(0), pool, &params);
  expect_all_right(s);
}

TEST(FarLse, TheRestIsWhatRoundingTook) {
  EXPECT_EQ(lse_rest(-1e10f, 7), 7);
  EXPECT_EQ(lse_rest(65536, 0.001f), 0.001f);
  EXPECT_EQ(lse_rest(12, 3), 0);
  EXPECT_EQ(lse_rest(-INFINITY, -INFINITY), 0);
  EXPECT_EQ(lse_rest(NAN, 1), 0);
}

}  // namespace
}  // namespace hpcdl

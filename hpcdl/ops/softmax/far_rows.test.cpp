// Rows far from 0, as masks of -1e10, -1e30 and the lowest float produce them: every float value is a valid input.
// Every length for which a separate kernel exists, on every instruction set and on a GPU, against a loop in double.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/ops/softmax/softmax.h"
#include "hpcdl/testing/every_isa.h"

namespace hpcdl {
namespace {

constexpr float kMost = std::numeric_limits<float>::max();
constexpr float kLevels[] = {-1e10f, -1e30f, -kMost, 3e38f, 1e6f, -3000.0f};
constexpr std::int64_t kPatterns = 6, kRows = kPatterns * static_cast<std::int64_t>(std::size(kLevels));

/// Column c of n of row r: a constant level; next to one ordinary element; alternating with another mask; before
/// ordinary elements; in small steps; before its opposite.
float element(std::int64_t r, std::int64_t c, std::int64_t n) {
  const float level = kLevels[r % kRows / kPatterns], ordinary = static_cast<float>(c * 7919 % 1000) / 100;
  switch (r % kPatterns) {
    case 0: return level;
    case 1: return c == n / 2 ? ordinary : level;
    case 2: return c % 2 == 0 ? level : -1e10f;
    case 3: return c < n - n / 4 ? level : ordinary;
    case 4: return level + static_cast<float>(c % 3);
    default: return c < n / 2 ? level : -level;
  }
}

struct Rows {
  std::int64_t rows, cols;
  Softmax::Args args = {};
  std::int64_t seen(std::int64_t r) const { return args.causal ? r + cols - rows + 1 : cols; }
};

/// The largest float would round to infinity in bf16.
template <class T> T stored(float x) { return T(std::is_same_v<T, float> ? x : std::clamp(x, -3.3e38f, 3.3e38f)); }

template <class T> void expect_row(const Rows& shape, std::int64_t r, const T* x, const T* y) {
  const auto at = [&](std::int64_t c) {
    return static_cast<double>(shape.args.scale) * static_cast<double>(static_cast<float>(x[c]));
  };
  double top = -INFINITY, sum = 0;
  for (std::int64_t c = 0; c < shape.seen(r); ++c) top = std::max(top, at(c));
  for (std::int64_t c = 0; c < shape.seen(r); ++c) sum += std::exp(at(c) - top);
  const double relative = std::is_same_v<T, float> ? 5e-5 : 0x1p-8;
  for (std::int64_t c = 0; c < shape.cols; ++c) {
    const double want = c < shape.seen(r) ? std::exp(at(c) - top) / sum : 0;
    ASSERT_NEAR(static_cast<float>(y[c]), want, relative * want + 1e-30)
        << to_string(Spec{{shape.rows, shape.cols}, dtype_of<T>}) << ", scale " << shape.args.scale << ", row " << r
        << ", column " << c;
  }
}

template <class T> void expect_right(Stream& s, const Rows& shape) {
  const Spec spec{{shape.rows, shape.cols}, dtype_of<T>};
  OwnedTensor x(spec), y(spec), there(spec, s.device());
  for (std::int64_t r = 0; r < shape.rows; ++r)
    for (std::int64_t c = 0; c < shape.cols; ++c)
      x.tensor.ptr<T>()[r * shape.cols + c] = stored<T>(element(r, c, shape.seen(r)));
  copy(s, there.tensor, x.tensor);
  Softmax::forward(s, there.tensor, there.tensor, shape.args);
  copy(s, y.tensor, there.tensor);
  s.synchronize();
  const std::int64_t step = shape.rows > 4 * kRows ? 31 : 1;
  for (std::int64_t r = 0; r < shape.rows; r += step)
    expect_row(shape, r, x.tensor.ptr<T>() + r * shape.cols, y.tensor.ptr<T>() + r * shape.cols);
}

void expect_all_right(Stream& s) {
  for (const float scale : {1.0f, -1.0f, 0.125f})
    for (const bool causal : {false, true})
      for (const std::int64_t cols : {40, 130, 1000, 2056, 5000}) {
        expect_right<float>(s, {kRows, cols, {.scale = scale, .causal = causal}});
        expect_right<bf16>(s, {kRows, cols, {.scale = scale, .causal = causal}});
      }
  for (const std::int64_t cols : {9001, 20480, 70000, 139264}) {
    expect_right<float>(s, {kRows, cols});
    if (cols != 70000) expect_right<bf16>(s, {kRows, cols});
  }
}

TEST(FarRows, AreRightOnEveryInstructionSet) {
  Pool pool(2);
  Stream s(pool);
  testing::for_each_isa([&] {
    expect_all_right(s);
    expect_right<float>(s, {4300, 1008});  // with non-temporal stores, rows in turn
  });
}

TEST(FarRows, AreRightOnAGpu) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  StepParams params;
  Stream s(Device::cuda(0), pool, &params);
  expect_all_right(s);
  expect_right<float>(s, {kRows, 270344});
}

}  // namespace
}  // namespace hpcdl

#include "hpcdl/ops/top1/top1.h"

#include <gtest/gtest.h>

#include <algorithm>

#include <cmath>
#include <limits>

#include "hpcdl/core/error.h"
#include "hpcdl/graph.h"
#include "hpcdl/instance.h"

namespace hpcdl {
namespace {

float count(const Device& device, std::vector<float> logits, std::vector<std::int32_t> targets,
            DType dtype = DType::f32) {
  const auto rows = std::ssize(targets);
  Graph g({.inference = true});
  const Var x = g.input("x", {{rows, std::ssize(logits) / rows}, dtype}), t = g.input("t", {{rows}, DType::i32});
  const Var y = g.keep(top1(x, t));
  const Instance exe(g.finish(), nullptr, device);
  Pool pool(2);
  StepParams params;
  Stream s(device, pool, &params);
  std::vector<bf16> rounded(logits.begin(), logits.end());
  copy(s, exe.tensor(x), View(dtype == DType::f32 ? static_cast<void*>(logits.data()) : rounded.data(), x.spec()));
  copy(s, exe.tensor(t), View(targets.data(), t.spec()));
  exe.run(s);
  float right = -1;
  copy(s, Tensor(&right, y.spec()), exe.tensor(y));
  s.synchronize();
  return right;
}

std::vector<Device> devices() {
  std::vector<Device> list{Device{}};
  if (cuda_devices() > 0) list.push_back(Device::cuda(0));
  return list;
}

TEST(top1, counts_rows_whose_target_is_the_first_largest_value) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& device : devices())
    for (const auto dtype : {DType::f32, DType::bf16}) {
      EXPECT_EQ(count(device, {1, 3, 2, 5, 5, 4, -1, -2, -3}, {1, 0, 2}, dtype), 2);
      EXPECT_EQ(count(device, {5, 5, 4}, {1}, dtype), 0) << "of equal values the first counts";
      EXPECT_EQ(count(device, {nan, 1, nan}, {1}, dtype), 1);
      EXPECT_EQ(count(device, {nan, nan, nan}, {0}, dtype), 0);
      EXPECT_EQ(count(device, {-inf, -inf, -inf}, {0}, dtype), 1);
      EXPECT_EQ(count(device, {1, inf, 2}, {1}, dtype), 1);
      EXPECT_EQ(count(device, {7, 1, 2}, {-1}, dtype), 0) << "ignored";
      EXPECT_EQ(count(device, {7}, {0}, dtype), 1);
    }
}

TEST(top1, many_rows) {
  std::vector<float> logits(1003 * 17);
  std::vector<std::int32_t> targets(1003);
  std::uint32_t x = 1;
  for (auto& v : logits) v = static_cast<float>((x = x * 1664525u + 1013904223u) >> 8);
  int want = 0;
  for (std::size_t r = 0; r < targets.size(); ++r) {
    targets[r] = static_cast<std::int32_t>(r % 17);
    const auto* row = logits.data() + r * 17;
    want += std::max_element(row, row + 17) - row == targets[r];
  }
  ASSERT_GT(want, 10);
  for (const auto& device : devices()) EXPECT_EQ(count(device, logits, targets), static_cast<float>(want));
}

/// Rows for a warp and for a block, with and without whole 16-byte packs, on one block of a GPU and on many; including
/// ties, -inf and NaN.
TEST(top1, rows_of_any_length) {
  for (const auto& device : devices())
    for (const auto dtype : {DType::f32, DType::bf16})
      for (const auto& [rows, cols] : {std::pair{5, 40}, {70, 1000}, {2100, 61}, {3, 4104}, {40, 9001}}) {
        std::vector<float> logits(static_cast<std::size_t>(rows * cols));
        std::vector<std::int32_t> targets(static_cast<std::size_t>(rows));
        std::uint32_t x = 7;
        for (auto& v : logits) v = static_cast<float>((x = x * 1664525u + 1013904223u) >> 24);  // many ties
        int want = 0;
        for (int r = 0; r < rows; ++r) {
          auto* row = logits.data() + std::int64_t{r} * cols;
          if (r % 7 == 3) row[r % cols] = std::numeric_limits<float>::quiet_NaN();
          if (r % 11 == 5) std::fill(row, row + cols, -std::numeric_limits<float>::infinity());
          int best = -1;
          for (int c = 0; c < cols; ++c)
            if (!std::isnan(row[c]) && (best < 0 || row[c] > row[best])) best = c;
          // The first of the largest values, or a later equal one, or an arbitrary one.
          targets[static_cast<std::size_t>(r)] =
              r % 3 == 0   ? best
              : r % 3 == 1 ? static_cast<int>(std::find(row + best + 1, row + cols, row[best]) - row)
                           : r % cols;
          want += targets[static_cast<std::size_t>(r)] == best;
        }
        ASSERT_GT(want, 0);
        ASSERT_LT(want, rows);
        EXPECT_EQ(count(device, logits, targets, dtype), static_cast<float>(want))
            << device.index << " " << rows << " x " << cols;
      }
}

TEST(top1, refuses_what_does_not_fit) {
  Graph g({.inference = true});
  const Var x = g.input("x", {{4, 3}, DType::f32});
  EXPECT_THROW(top1(x, g.input("t", {{3}, DType::i32})), Error);
  EXPECT_THROW(top1(x, g.input("t", {{4}, DType::f32})), Error);
}

}  // namespace
}  // namespace hpcdl

// Lengths that are not a multiple of 16 bytes, around the limits of every team of threads that handles them
// (with_odd_team in cuda/rows.cuh): against loops in double, with the same bits for any alignment, and nothing written
// around the rows.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <type_traits>

#include "hpcdl/buffer.h"
#include "hpcdl/ops/softmax/softmax.h"
#include "hpcdl/testing/odd_rows.h"

namespace hpcdl {
namespace {

template <class T> testing::ExpectedRow softmax_of(std::span<const double> row) {
  double sum = 0;
  const double top = *std::max_element(row.begin(), row.end());
  for (const double x : row) sum += std::exp(x - top);
  testing::ExpectedRow want;
  for (const double x : row) {
    const double y = std::exp(x - top) / sum;
    want.values.push_back(y);
    want.allowed.push_back((std::is_same_v<T, float> ? 1e-5 : 0x1p-8) * y + (std::is_same_v<T, f16> ? 0x1p-24 : 0));
  }
  return want;
}

template <class T> void expect_right(Stream& s, std::int64_t cols) {
  testing::expect_odd_rows<T>(s, cols, [&](const Tensor& x) { Softmax::forward(s, x, x, {}); }, softmax_of<T>);
}

class OddSoftmaxRows : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(OddSoftmaxRows, of_a_gpu) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  Stream s(Device{DeviceKind::cuda, 0}, pool);
  expect_right<bf16>(s, GetParam());
  expect_right<f16>(s, GetParam());
  expect_right<float>(s, GetParam() / 2 | 1);
}

INSTANTIATE_TEST_SUITE_P(Lengths, OddSoftmaxRows, ::testing::ValuesIn(testing::kOddLengths));

}  // namespace
}  // namespace hpcdl

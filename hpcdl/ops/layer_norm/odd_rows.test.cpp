// Lengths that are not a multiple of 16 bytes, around the limits of every team of threads that handles them
// (with_odd_norm_team in norm_forward.cuh): against loops in double, with the same bits for any alignment, and nothing
// written around the rows.

#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <type_traits>

#include "hpcdl/buffer.h"
#include "hpcdl/ops/layer_norm/layer_norm.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/odd_rows.h"

namespace hpcdl {
namespace {

using testing::kRows;

template <class T> OwnedTensor parameter(Stream& s, std::int64_t cols, std::uint64_t seed) {
  OwnedTensor host(Spec{{cols}, dtype_of<T>}), there(host.tensor.spec(), s.device());
  for (std::int64_t i = 0; i < cols; ++i)
    host.tensor.ptr<T>()[i] = T(static_cast<float>(Rng{seed, 2}.normal(static_cast<std::uint64_t>(i))));
  copy(s, there.tensor, host.tensor);
  s.synchronize();
  return there;
}

template <class T> testing::ExpectedRow norm_of(std::span<const double> row, const T* gamma, const T* beta) {
  constexpr double kAllowed = std::is_same_v<T, float> ? 2e-5 : std::is_same_v<T, bf16> ? 0x1p-8 : 0x1p-10;
  const auto n = static_cast<double>(row.size());
  double mean = 0, squares = 0;
  for (const double x : row) mean += x / n;
  for (const double x : row) squares += (x - mean) * (x - mean);
  const double scale = 1 / std::sqrt(squares / n + 1e-5);
  testing::ExpectedRow want;
  for (std::size_t c = 0; c < row.size(); ++c) {
    const double product = (row[c] - mean) * scale * static_cast<double>(static_cast<float>(gamma[c])),
                 added = static_cast<double>(static_cast<float>(beta[c]));
    want.values.push_back(product + added);
    want.allowed.push_back(kAllowed * (std::fabs(product) + std::fabs(added) + 0.01));
  }
  return want;
}

template <class T> void expect_right(Stream& s, std::int64_t cols) {
  const OwnedTensor gamma = parameter<T>(s, cols, 1), beta = parameter<T>(s, cols, 2);
  OwnedTensor g(gamma.tensor.spec()), b(gamma.tensor.spec());
  copy(s, g.tensor, gamma.tensor), copy(s, b.tensor, beta.tensor);
  s.synchronize();
  const OwnedTensor mean(Spec{{kRows}, DType::f32}, s.device()), rstd(Spec{{kRows}, DType::f32}, s.device());
  testing::expect_odd_rows<T>(
      s, cols,
      [&](const Tensor& x) {
        LayerNorm::forward(s, x, mean.tensor, rstd.tensor, x, gamma.tensor, beta.tensor, {.eps = 1e-5f});
      },
      [&](std::span<const double> row) { return norm_of(row, g.tensor.ptr<T>(), b.tensor.ptr<T>()); });
}

class OddNormRows : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(OddNormRows, of_a_gpu) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  Stream s(Device{DeviceKind::cuda, 0}, pool);
  expect_right<bf16>(s, GetParam());
  expect_right<f16>(s, GetParam());
  expect_right<float>(s, GetParam() / 2 | 1);
}

INSTANTIATE_TEST_SUITE_P(Lengths, OddNormRows, ::testing::ValuesIn(testing::kOddLengths));

}  // namespace
}  // namespace hpcdl

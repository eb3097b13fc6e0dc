// Lengths that no access of 16 bytes divides, around the edges of every team of threads that serves them (with_odd_norm_team
// in cuda/rows.h): against loops in double, the same bits from any address, and nothing written around the rows.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "hpcdl/core/buffer.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/rng.h"
#include "hpcdl/core/tolerance.h"
#include "hpcdl/ops/layer_norm/layer_norm.h"
#include "hpcdl/testing/odd_rows.h"

namespace hpcdl {
namespace {

using testing::kRows;
using testing::Placed;

template <class T> OwnedTensor parameter(Stream& s, std::int64_t cols, std::uint64_t seed) {
  OwnedTensor host(Spec{{cols}, dtype_of<T>}), there(host.tensor.spec(), s.device());
  for (std::int64_t i = 0; i < cols; ++i)
    host.tensor.ptr<T>()[i] = T(static_cast<float>(Rng{seed, 2}.normal(static_cast<std::uint64_t>(i))));
  copy(s, there.tensor, host.tensor);
  s.synchronize();
  return there;
}

template <class T> void expect_right(Stream& s, std::int64_t cols) {
  SCOPED_TRACE(to_string(Spec{{kRows, cols}, dtype_of<T>}));
  const OwnedTensor gamma = parameter<T>(s, cols, 1), beta = parameter<T>(s, cols, 2);
  OwnedTensor g(gamma.tensor.spec()), b(gamma.tensor.spec());
  copy(s, g.tensor, gamma.tensor), copy(s, b.tensor, beta.tensor);
  s.synchronize();
  const OwnedTensor mean(Spec{{kRows}, DType::f32}, s.device()), rstd(Spec{{kRows}, DType::f32}, s.device());
  std::vector<T> first;
  for (const auto& [apart, begin] : {std::pair<std::int64_t, std::int64_t>{cols, 16}, {cols, 19}, {cols + 5, 16}}) {
    Placed<T> x(s, cols, apart, begin);
    std::vector<double> want, size;
    for (std::int64_t r = 0; r < kRows; ++r) {
      const auto value = [&](std::int64_t c) { return static_cast<double>(static_cast<float>(x.at(r, c))); };
      double average = 0, squares = 0;
      for (std::int64_t c = 0; c < cols; ++c) average += value(c) / static_cast<double>(cols);
      for (std::int64_t c = 0; c < cols; ++c) squares += (value(c) - average) * (value(c) - average);
      const double scale = 1 / std::sqrt(squares / static_cast<double>(cols) + 1e-5);
      for (std::int64_t c = 0; c < cols; ++c) {
        const double product =
                         (value(c) - average) * scale * static_cast<double>(static_cast<float>(g.tensor.ptr<T>()[c])),
                     added = static_cast<double>(static_cast<float>(b.tensor.ptr<T>()[c]));
        want.push_back(product + added), size.push_back(std::fabs(product) + std::fabs(added) + 0.01);
      }
    }
    LayerNorm::forward(s, x.rows(s), mean.tensor, rstd.tensor, x.rows(s), gamma.tensor, beta.tensor, {.eps = 1e-5f});
    const auto got = x.results(s);
    x.expect_untouched_around();
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(static_cast<double>(static_cast<float>(got[i])), want[i],
                  (std::is_same_v<T, float>  ? 2e-5
                   : std::is_same_v<T, bf16> ? 0x1p-8
                                             : 0x1p-10) *
                      size[i])
          << "element " << i << ", rows " << apart << " apart, behind " << begin;
    if (first.empty()) first = got;
    EXPECT_EQ(0, std::memcmp(first.data(), got.data(), got.size() * sizeof(T)))
        << "other bits with rows " << apart << " apart, behind " << begin;
  }
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

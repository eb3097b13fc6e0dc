// Lengths that no access of 16 bytes divides, around the edges of every team of threads that serves them (with_odd_team
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
#include "hpcdl/ops/softmax/softmax.h"
#include "hpcdl/testing/odd_rows.h"

namespace hpcdl {
namespace {

using testing::kRows;
using testing::Placed;

template <class T> void expect_right(Stream& s, std::int64_t cols) {
  SCOPED_TRACE(to_string(Spec{{kRows, cols}, dtype_of<T>}));
  std::vector<T> first;
  for (const auto& [apart, begin] : {std::pair<std::int64_t, std::int64_t>{cols, 16}, {cols, 19}, {cols + 5, 16}}) {
    Placed<T> x(s, cols, apart, begin);
    std::vector<double> want;
    for (std::int64_t r = 0; r < kRows; ++r) {
      double top = -INFINITY, sum = 0;
      const auto value = [&](std::int64_t c) { return static_cast<double>(static_cast<float>(x.at(r, c))); };
      for (std::int64_t c = 0; c < cols; ++c) top = std::max(top, value(c));
      for (std::int64_t c = 0; c < cols; ++c) sum += std::exp(value(c) - top);
      for (std::int64_t c = 0; c < cols; ++c) want.push_back(std::exp(value(c) - top) / sum);
    }
    Softmax::forward(s, x.rows(s), x.rows(s), {});
    const auto got = x.results(s);
    x.expect_untouched_around();
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(static_cast<double>(static_cast<float>(got[i])), want[i],
                  (std::is_same_v<T, float> ? 1e-5 : 0x1p-8) * want[i] + (std::is_same_v<T, f16> ? 0x1p-24 : 0))
          << "element " << i << ", rows " << apart << " apart, behind " << begin;
    if (first.empty()) first = got;
    EXPECT_EQ(0, std::memcmp(first.data(), got.data(), got.size() * sizeof(T)))
        << "other bits with rows " << apart << " apart, behind " << begin;
  }
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

#include "hpcdl/ops/moe_route/moe_route.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "hpcdl/testing/decoding.h"

namespace hpcdl {
namespace {

/// Weights and experts of rows of `count` scores, in double.
void expect_choice(Stream& s, std::int64_t rows, std::int64_t count, MoeRoute::Args a, bool ties) {
  SCOPED_TRACE(fmt::format("{} rows of {} experts, {} chosen", rows, count, a.count));
  auto scores = testing::random_on(s, {rows, count}, DType::f32, 5);
  auto values = testing::on_host(s, scores.tensor);
  if (ties)
    for (auto& v : values) v = std::round(v);
  copy(s, scores.tensor, View(values.data(), scores.tensor.spec()));
  const auto specs = MoeRoute::infer(scores.tensor.spec(), a);
  OwnedTensor weights(specs[0], s.device()), experts(specs[1], s.device());
  MoeRoute::forward(s, weights.tensor, experts.tensor, scores.tensor, a);
  OwnedTensor chosen(specs[1]);
  copy(s, chosen.tensor, experts.tensor);
  const auto got = testing::on_host(s, weights.tensor);
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = values.data() + r * count;
    std::vector<std::int32_t> order(static_cast<std::size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](auto x, auto y) { return row[x] > row[y]; });
    double all = 0, sum = 0;
    for (std::int64_t e = 0; e < count; ++e) all += std::exp(static_cast<double>(row[e]));
    for (int i = 0; i < a.count; ++i)
      sum += std::exp(static_cast<double>(row[order[static_cast<std::size_t>(i)]])) / all;
    for (int i = 0; i < a.count; ++i) {
      const auto at = static_cast<std::size_t>(r * a.count + i);
      const auto expert = order[static_cast<std::size_t>(i)];
      ASSERT_EQ(chosen.tensor.ptr<std::int32_t>()[at], expert) << "row " << r << ", choice " << i;
      const double want = std::exp(static_cast<double>(row[expert])) / all / (a.sum_to_one ? sum : 1);
      ASSERT_NEAR(static_cast<double>(got[at]), want, 2e-6 * want) << "row " << r << ", choice " << i;
    }
  }
}

void expect_choices(Stream& s) {
  for (const auto& [rows, count, chosen] : std::vector<std::array<std::int64_t, 3>>{
           {1, 1, 1}, {3, 8, 2}, {70, 8, 8}, {5, 33, 3}, {9, 128, 8}, {2, 512, 17}, {300, 60, 4}})
    for (const bool sum_to_one : {false, true})
      for (const bool ties : {false, true}) expect_choice(s, rows, count, {static_cast<int>(chosen), sum_to_one}, ties);
}

TEST(moe_route, chooses_the_most_probable_experts_on_a_cpu) {
  Pool pool(2);
  Stream s(pool);
  expect_choices(s);
}

TEST(moe_route, chooses_the_most_probable_experts_on_a_gpu) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(2);
  Stream s(Device::cuda(0), pool);
  expect_choices(s);
}

TEST(moe_route, refuses_what_does_not_fit) {
  EXPECT_THROW(MoeRoute::infer({{3, 8}, DType::bf16}, {2}), Error);
  EXPECT_THROW(MoeRoute::infer({{3, 8}, DType::f32}, {9}), Error);
  EXPECT_THROW(MoeRoute::infer({{3, 8}, DType::f32}, {0}), Error);
  EXPECT_THROW(MoeRoute::infer({{3, 513}, DType::f32}, {2}), Error);
}

}  // namespace
}  // namespace hpcdl

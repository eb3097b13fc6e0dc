#include "hpcdl/ops/moe_route/moe_route.spec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "hpcdl/testing/decoding.h"
#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

testing::Input scores(std::int64_t rows, std::int64_t experts) {
  return testing::Input({rows, experts}).as(DType::f32);
}

const auto spec = testing::op<MoeRoute>({
    .cases = {{.in = {scores(1, 1)}, .args = {.count = 1}},
              {.in = {scores(3, 8)}, .args = {.count = 2}},
              {.in = {scores(3, 8)}, .args = {.count = 2, .sum_to_one = false}},
              {.in = {scores(70, 8)}, .args = {.count = 8}},
              {.in = {scores(70, 8)}, .args = {.count = 8, .sum_to_one = false}},
              {.in = {scores(5, 33)}, .args = {.count = 3, .sum_to_one = false}},
              {.in = {scores(9, 128)}, .args = {.count = 8}},
              {.in = {scores(2, 512)}, .args = {.count = 17, .sum_to_one = false}},
              {.in = {scores(300, 60)}, .args = {.count = 4}},
              {.in = {scores(0, 4)}, .args = {.count = 2}}},
    .reference = contract::moe_route_reference,
    .reduction = [](std::span<const Spec> in, const MoeRoute::Args&) { return in[0][-1]; },
});

/// Of equal scores, the experts with the lowest numbers are chosen.
void expect_ties(Stream& s) {
  constexpr std::int64_t kRows = 90, kExperts = 60;
  constexpr int kChosen = 9;
  auto from = testing::random_on(s, {kRows, kExperts}, DType::f32, 5);
  auto values = testing::on_host(s, from.tensor);
  for (auto& v : values) v = std::round(v);
  copy(s, from.tensor, View(values.data(), from.tensor.spec()));
  const MoeRoute::Args a{.count = kChosen};
  const auto specs = MoeRoute::infer(from.tensor.spec(), a);
  OwnedTensor weights(specs[0], s.device()), experts(specs[1], s.device()), chosen(specs[1]);
  MoeRoute::forward(s, weights.tensor, experts.tensor, from.tensor, a);
  copy(s, chosen.tensor, experts.tensor);
  s.synchronize();
  for (std::int64_t r = 0; r < kRows; ++r) {
    std::vector<std::int32_t> order(kExperts);
    std::iota(order.begin(), order.end(), 0);
    const float* row = values.data() + r * kExperts;
    std::stable_sort(order.begin(), order.end(), [&](auto x, auto y) { return row[x] > row[y]; });
    const std::int32_t* got = chosen.tensor.ptr<std::int32_t>() + r * kChosen;
    ASSERT_TRUE(std::equal(got, got + kChosen, order.begin())) << "row " << r;
  }
}

TEST(moe_route, chooses_the_first_of_equal_scores_on_a_cpu) {
  Pool pool(2);
  Stream s(pool);
  expect_ties(s);
}

TEST(moe_route, chooses_the_first_of_equal_scores_on_a_gpu) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(2);
  Stream s(Device::cuda(0), pool);
  expect_ties(s);
}

TEST(moe_route, refuses_what_does_not_fit) {
  EXPECT_THROW(MoeRoute::infer({{3, 8}, DType::bf16}, {2}), Error);
  EXPECT_THROW(MoeRoute::infer({{3, 8}, DType::f32}, {9}), Error);
  EXPECT_THROW(MoeRoute::infer({{3, 8}, DType::f32}, {0}), Error);
  EXPECT_THROW(MoeRoute::infer({{3, 513}, DType::f32}, {2}), Error);
}

}  // namespace
}  // namespace hpcdl

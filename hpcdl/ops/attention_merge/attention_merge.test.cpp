#include "hpcdl/ops/attention_merge/attention_merge.spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Input;

Input f32(Shape shape) { return Input(shape).as(DType::f32); }

/// Operands of B sequences of T queries, of which the part has the first t.
std::vector<Input> operands(std::int64_t b, std::int64_t queries, std::int64_t t, std::int64_t heads, std::int64_t d) {
  return {f32({b, queries, heads * d}), f32({b, heads, queries}), Input({b, t, heads * d}), f32({b, heads, t})};
}

const auto spec = testing::op<AttentionMerge>({
    .cases = {{.in = operands(1, 1, 1, 1, 1)},
              {.in = operands(2, 3, 3, 1, 5)},
              {.in = operands(3, 7, 4, 2, 33)},
              {.in = operands(2, 5, 1, 7, 10)},
              {.in = operands(1, 33, 32, 3, 128)},
              {.in = operands(2, 129, 129, 4, 64)},
              {.in = operands(0, 4, 4, 2, 8)}},
    .reference = contract::attention_merge_reference,
    .reduction = [](std::span<const Spec>, const AttentionMerge::Args&) { return std::int64_t{16}; },
});

/// Rows that saw no key on one side or on both, far values, and a result in the memory of the first part.
TEST(attention_merge, takes_rows_without_keys) {
  constexpr float kInf = INFINITY;
  const std::vector<float> a{-kInf, 2, -kInf, 80, -3e4f}, b{1, -kInf, -kInf, -80, 3e4f};
  const auto n = std::ssize(a);
  std::vector<float> out{0, 5, 0, 7, 11}, part{3, 0, 0, 9, 13}, lse = a, other = b;
  const Spec rows{{1, n, 1}, DType::f32}, stats{{1, 1, n}, DType::f32};
  Pool pool(1);
  Stream s(pool);
  const Tensor to(out.data(), rows), to_lse(lse.data(), stats);
  AttentionMerge::forward(s, to, to_lse, to, to_lse, View(part.data(), rows), View(other.data(), stats), {});
  EXPECT_EQ(out, (std::vector<float>{3, 5, 0, 7, 13}));
  EXPECT_EQ(lse, (std::vector<float>{1, 2, -kInf, 80, 3e4f}));
}

TEST(attention_merge, refuses_what_does_not_fit) {
  const Spec out{{2, 5, 8}, DType::f32}, lse{{2, 2, 5}, DType::f32}, part{{2, 3, 8}, DType::bf16},
      part_lse{{2, 2, 3}, DType::f32};
  const auto infer = [](const Spec& a, const Spec& b, const Spec& c, const Spec& d) {
    return AttentionMerge::infer(a, b, c, d, {});
  };
  EXPECT_EQ(infer(out, lse, part, part_lse)[1], lse);
  EXPECT_THROW(infer({{2, 5, 8}, DType::bf16}, lse, part, part_lse), Error);
  EXPECT_THROW(infer(out, {{2, 3, 5}, DType::f32}, part, part_lse), Error);
  EXPECT_THROW(infer(out, lse, {{2, 6, 8}, DType::f32}, part_lse), Error);
  EXPECT_THROW(infer(out, lse, {{1, 3, 8}, DType::f32}, part_lse), Error);
  EXPECT_THROW(infer(out, lse, part, lse), Error);
}

}  // namespace
}  // namespace hpcdl

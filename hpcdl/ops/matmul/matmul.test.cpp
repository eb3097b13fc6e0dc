#include "hpcdl/ops/matmul/matmul.h"

#include <gtest/gtest.h>

#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Ref;

const auto spec = testing::op<Matmul>({
    .cases =
        {
            {.in = {{1, 1}, {1, 1}}},
            {.in = {{7, 13}, {13, 50}}},
            {.in = {{13, 7}, {13, 50}}, .args = {.transpose_a = true}},
            {.in = {{7, 13}, {50, 13}}, .args = {.transpose_b = true, .scale = 0.125f}},
            {.in = {{13, 7}, {50, 13}}, .args = {.transpose_a = true, .transpose_b = true}},
            {.in = {{2, 3, 5, 16}, {2, 3, 9, 16}}, .args = {.transpose_b = true}},
            {.in = {{5, 6, 8}, {5, 6, 3}}, .args = {.transpose_a = true, .scale = 2}},
            {.in = {{4, 5, 8}, {8, 11}}},
            {.in = {{4, 5, 8}, {11, 8}}, .args = {.transpose_b = true, .scale = 0.5f}},
            {.in = {{0, 5, 8}, {0, 8, 2}}, .gradient = false},
        },
    .reference =
        [](std::span<Ref> out, std::span<const Ref> in, const Matmul::Args& t) {
          const Ref &a = in[0], &b = in[1];
          Ref& y = out[0];
          const auto m = y.shape[-2], n = y.shape[-1], k = a.shape[t.transpose_a ? -2 : -1];
          const auto batch = y.size() / (m * n);
          for (std::int64_t s = 0; s < batch; ++s)
            for (std::int64_t i = 0; i < m; ++i)
              for (std::int64_t j = 0; j < n; ++j) {
                double sum = 0;
                const auto b0 = b.shape.rank() == 2 ? 0 : s * k * n;
                for (std::int64_t l = 0; l < k; ++l)
                  sum += a[s * m * k + (t.transpose_a ? l * m + i : i * k + l)] *
                         b[b0 + (t.transpose_b ? j * k + l : l * n + j)];
                y[(s * m + i) * n + j] = t.scale * sum;
              }
        },
    .reduction = [](std::span<const Spec> in, const Matmul::Args&) { return in[0][-1] + in[0][-2] + in[1][-1]; },
    // Products of two outliers (10 x 10) are 10 times the largest input that the allowed error counts from.
    .condition = 10,
});

TEST(MatmulChecks, SaysWhatIsWrong) {
  const Spec a{{2, 3, 4}, DType::f32};
  EXPECT_EQ(Matmul::infer(a, {{4, 5}, DType::f32}, {}), (Spec{{2, 3, 5}, DType::f32}));
  EXPECT_THROW(Matmul::infer(a, {{5, 4}, DType::f32}, {}), Error);
  EXPECT_THROW(Matmul::infer(a, {{3, 4, 5}, DType::f32}, {}), Error);
  EXPECT_THROW(Matmul::infer(a, {{4, 5}, DType::bf16}, {}), Error);
  EXPECT_THROW(Matmul::infer(a, {{3, 5}, DType::f32}, {.transpose_a = true}), Error);
}

}  // namespace
}  // namespace hpcdl

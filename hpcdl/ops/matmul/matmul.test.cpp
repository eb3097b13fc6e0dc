#include "hpcdl/ops/matmul/matmul.spec.h"

#include <gtest/gtest.h>

#include <vector>

#include "hpcdl/core/describe.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/every_isa.h"
#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

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
    .contracts = contract::matmul_contracts(),
    .reduction = [](std::span<const Spec> in, const Matmul::Args&) { return in[0][-1] + in[0][-2] + in[1][-1]; },
    // Products of two outliers (10 x 10) are 10 times the largest input, which the allowed error is relative to.
    .condition = 10,
});

/// A view of dense rows in memory that has a gap after the elements of dim `gap_after`; -1: none.
struct Spread {
  std::vector<float> memory;
  Tensor view;

  Spread(const Shape& shape, int gap_after, std::uint64_t seed) {
    Shape strides = shape;
    std::int64_t n = 1;
    for (int i = shape.rank() - 1; i >= 0; --i) {
      strides[i] = n;
      n *= shape[i];
      if (i == gap_after) n += i == shape.rank() - 1 ? 3 : 2 * strides[i];
    }
    memory.resize(static_cast<std::size_t>(n), 1000.0f);
    view = Tensor(memory.data(), {shape, DType::f32}, clean_strides(shape, strides), {});
    for (std::int64_t i = 0; i < view.size(); ++i)
      at(i) = static_cast<float>(Rng{seed}.normal(static_cast<std::uint64_t>(i)));
  }
  float& at(std::int64_t i) {
    std::int64_t where = 0;
    for (int d = view.rank() - 1; d >= 0; --d) where += i % view[d] * view.strides()[d], i /= view[d];
    return memory[static_cast<std::size_t>(where)];
  }
};

void expect_shared(Stream& s, const Shape& lead, int gap, bool transposed) {
  const std::int64_t m = 5, k = 17, n = 9;
  Shape left = lead, right = lead;
  left.push_back(m), left.push_back(k), right.push_back(m), right.push_back(n);
  Spread a(left, gap, 1), y(right, gap, 2), dy(right, gap, 3), da(left, gap, 4);
  Spread b(transposed ? Shape{n, k} : Shape{k, n}, -1, 5), db(b.view.shape(), -1, 6);
  const Matmul::Args args{.transpose_b = transposed};
  std::size_t around = 0;
  for (const float x : y.memory) around += x == 1000.0f;
  Matmul::forward(s, y.view, a.view, b.view, args);
  Matmul::backward(s, Grad(da.view, Write::overwrite), Grad(db.view, Write::overwrite), a.view, b.view, dy.view, args);
  const auto of_b = [&](std::int64_t l, std::int64_t j) { return transposed ? j * k + l : l * n + j; };
  std::vector<double> want_db(static_cast<std::size_t>(k * n));
  const std::int64_t rows = a.view.size() / k;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < k; ++l) {
        sum += static_cast<double>(a.at(r * k + l)) * static_cast<double>(b.at(of_b(l, j)));
        want_db[static_cast<std::size_t>(of_b(l, j))] +=
            static_cast<double>(a.at(r * k + l)) * static_cast<double>(dy.at(r * n + j));
      }
      ASSERT_NEAR(y.at(r * n + j), sum, 1e-4) << r << ", " << j;
    }
    for (std::int64_t l = 0; l < k; ++l) {
      double sum = 0;
      for (std::int64_t j = 0; j < n; ++j)
        sum += static_cast<double>(dy.at(r * n + j)) * static_cast<double>(b.at(of_b(l, j)));
      ASSERT_NEAR(da.at(r * k + l), sum, 1e-4) << r << ", " << l;
    }
  }
  for (std::int64_t i = 0; i < k * n; ++i) ASSERT_NEAR(db.at(i), want_db[static_cast<std::size_t>(i)], 1e-3) << i;
  for (const float x : y.memory) around -= x == 1000.0f;
  EXPECT_EQ(around, 0u) << "elements outside the view were written";
}

/// Matrices of a batch that share b are one tall matrix only if their rows are equally spaced.
TEST(Matmul, BatchesWithGapsShareAMatrix) {
  Pool pool(2);
  Stream s(pool);
  testing::for_each_isa([&] {
    for (const Shape& lead : {Shape{3}, Shape{2, 3}, Shape{1, 4}, Shape{2, 1, 3}, Shape{2, 3, 1}, Shape{2, 1, 2, 2}})
      for (int gap = -1; gap < lead.rank() + 2; ++gap)
        for (const bool transposed : {false, true}) {
          SCOPED_TRACE(to_string(Spec{lead, DType::f32}) + ", gap after dim " + std::to_string(gap));
          expect_shared(s, lead, gap, transposed);
        }
  });
}

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

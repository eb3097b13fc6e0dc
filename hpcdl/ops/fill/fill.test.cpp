#include "hpcdl/ops/fill/fill.h"

#include "hpcdl/simd/isa.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace hpcdl {
namespace {

// Every length around a vector's width, with a row stride longer than the row: the elements between rows must not
// change.
template <class T> void check(simd::IsaKind isa) {
  if (!simd::set_active_isa(isa)) GTEST_SKIP() << "this CPU has no " << simd::isa_name(isa);
  Pool pool(2);
  Stream stream(pool);
  for (std::int64_t cols = 1; cols < 70; ++cols) {
    const std::int64_t rows = 3, stride = cols + 5;
    const Spec spec{{rows, cols}, dtype_of<T>};
    std::vector<T> y(static_cast<std::size_t>(rows * stride), T(-7.0f)), x = y;
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = T(static_cast<float>(i % 64));
    const Tensor ty(y.data(), spec, {stride, 1}, {}), tx(x.data(), spec, {stride, 1}, {});
    Fill::forward(stream, ty, {.value = 2.5f});
    const Grad operands[] = {Grad(ty, Write::overwrite), Grad(tx, Write::overwrite)};
    AddInto::run(stream, operands, nullptr);
    for (std::size_t i = 0; i < y.size(); ++i) {
      const bool inside = static_cast<std::int64_t>(i) % stride < cols;
      ASSERT_EQ(float(y[i]), inside ? 2.5f + static_cast<float>(i % 64) : -7.0f)
          << "cols " << cols << ", element " << i;
    }
  }
  simd::set_active_isa(simd::best_isa());
}

class Fills : public testing::TestWithParam<simd::IsaKind> {};
TEST_P(Fills, and_adds_f32) { check<float>(GetParam()); }
TEST_P(Fills, and_adds_bf16) { check<bf16>(GetParam()); }
INSTANTIATE_TEST_SUITE_P(isa, Fills, testing::Values(simd::IsaKind::scalar, simd::IsaKind::avx2, simd::IsaKind::avx512),
                         [](const auto& c) { return std::string(simd::isa_name(c.param)); });

}  // namespace
}  // namespace hpcdl

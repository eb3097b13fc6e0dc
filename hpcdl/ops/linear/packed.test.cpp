#include "hpcdl/ops/linear/packed.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "hpcdl/core/element.h"
#include "hpcdl/ops/activations.h"
#include "hpcdl/simd/isa.h"
#include "hpcdl/testing/every_isa.h"
#include "hpcdl/testing/random_tensor.h"

namespace hpcdl {
namespace {

using testing::for_each_isa;
using testing::random_tensor;

struct Case {
  std::int64_t rows, n, k;
  Activation activation;
  bool conv1d, biased, residual;
};
constexpr Case kCases[] = {
    {1, 1, 1, Activation::none, false, false, false},      {7, 1, 1, Activation::relu, false, true, false},
    {3, 50, 70, Activation::gelu_tanh, false, true, true}, {7, 50, 70, Activation::gelu_tanh, true, true, false},
    {20, 130, 1100, Activation::none, false, true, true},  {45, 330, 633, Activation::gelu_erf, true, false, true},
    {0, 16, 32, Activation::relu, false, true, false},
};

struct Operands {
  OwnedTensor x, w, bias, residual;
  LinearArgs args;
  Spec y;

  Operands(const Case& c, DType dx, DType dw)
      : x(random_tensor({{c.rows, c.k}, dx}, 1)),
        w(random_tensor({c.conv1d ? Shape{c.k, c.n} : Shape{c.n, c.k}, dw}, 2)),
        args{.activation = c.activation, .conv1d = c.conv1d},
        y{{c.rows, c.n}, dx} {
    if (c.biased) bias = random_tensor({{c.n}, dw}, 3);
    if (c.residual) residual = random_tensor(y, 4);
  }
  /// Element (row, col) in double, and the sum of the magnitudes of its terms.
  std::pair<double, double> exact(std::int64_t row, std::int64_t col) const {
    const std::int64_t n = y[-1], k = x.tensor[-1];
    double z = bias.tensor ? element(bias.tensor, col) : 0, size = std::fabs(z);
    for (std::int64_t i = 0; i < k; ++i) {
      double v = element(w.tensor, args.conv1d ? i * n + col : col * k + i);
      if (y.dtype == DType::bf16) v = static_cast<float>(bf16(static_cast<float>(v)));
      z += element(x.tensor, row * k + i) * v, size += std::fabs(element(x.tensor, row * k + i) * v);
    }
    const double r = residual.tensor ? element(residual.tensor, row * n + col) : 0;
    return {contract::activated(args.activation, z) + r, size + std::fabs(r)};
  }
};

// Against sums in double for any number of rows; from seven rows on the bits equal those of the unpacked weight.
TEST(PackedWeight, ActsAsTheWeightItself) {
  Pool pool(2);
  Stream s(pool);
  for_each_isa([&] {
    for (const Case& c : kCases)
      for (const DType dx : {DType::f32, DType::bf16, DType::f16})
        for (const DType dw : {DType::f32, dx}) {
          const Operands o(c, dx, dw);
          const PackedWeight packed(pool, o.w.tensor, dx, c.conv1d);
          EXPECT_EQ(packed.spec(), (Spec{{c.n, c.k}, dx}));
          EXPECT_GE(packed.bytes(), packed.spec().bytes());
          const OwnedTensor y(o.y), plain(o.y), z(o.y);
          linear(s, y.tensor, o.x.tensor, packed, o.bias.tensor, o.residual.tensor, c.activation);
          if (dx != DType::f16)  // its weights are rounded to f16, like those of bf16
            for (std::int64_t i = 0; i < o.y.size(); i += 7) {
              const auto [want, size] = o.exact(i / c.n, i % c.n);
              const double eps = dx == DType::f32 ? 0x1p-23 : 0x1p-8;
              ASSERT_NEAR(element(y.tensor, i), want,
                          4 * eps * std::fabs(want) + static_cast<double>(c.k + 4) * 0x1p-24 * size + 1e-6)
                  << c.rows << "x" << c.n << "x" << c.k << " at " << i;
            }
          if (c.rows <= gemm::KernelSet::kSmallRows) continue;
          if (c.activation == Activation::none)
            Linear::forward(s, plain.tensor, o.x.tensor, o.w.tensor, o.bias.tensor, o.residual.tensor, o.args);
          else
            ActivatedLinear::forward(s, plain.tensor, z.tensor, o.x.tensor, o.w.tensor, o.bias.tensor,
                                     o.residual.tensor, o.args);
          ASSERT_EQ(0, std::memcmp(y.tensor.data(), plain.tensor.data(), static_cast<std::size_t>(o.y.bytes())))
              << c.rows << "x" << c.n << "x" << c.k;
        }
  });
}

TEST(PackedWeight, IsACopy) {
  Pool pool(2);
  Stream s(pool);
  const Spec spec{{9, 33}, DType::f32};
  const auto x = random_tensor({{8, 33}, DType::f32}, 1), w = random_tensor(spec, 2);
  const PackedWeight packed(pool, w.tensor, DType::f32);
  const OwnedTensor before({{8, 9}, DType::f32}), after({{8, 9}, DType::f32});
  linear(s, before.tensor, x.tensor, packed);
  std::memset(w.tensor.data(), 0xff, static_cast<std::size_t>(spec.bytes()));
  linear(s, after.tensor, x.tensor, packed);
  EXPECT_EQ(0, std::memcmp(before.tensor.data(), after.tensor.data(), 8 * 9 * 4));
}

TEST(PackedWeight, SaysWhatIsWrong) {
  Pool pool(1);
  Stream s(pool);
  const auto w = random_tensor({{4, 8}, DType::f32}, 1);
  const PackedWeight packed(pool, w.tensor, DType::f32);
  EXPECT_EQ(linear_spec({{2, 3, 8}, DType::f32}, packed, {}, {}), (Spec{{2, 3, 4}, DType::f32}));
  EXPECT_THROW(linear_spec({{2, 4}, DType::f32}, packed, {}, {}), Error);
  EXPECT_THROW(linear_spec({{2, 8}, DType::bf16}, packed, {}, {}), Error);
  EXPECT_THROW(linear_spec({{2, 8}, DType::f32}, packed, {{5}, DType::f32}, {}), Error);
  EXPECT_THROW(PackedWeight(pool, w.tensor, DType::i32), Error);
  EXPECT_THROW(PackedWeight(pool, random_tensor({{0, 8}, DType::f32}, 1).tensor, DType::f32), Error);
  EXPECT_THROW(PackedWeight(pool, random_tensor({{8}, DType::f32}, 1).tensor, DType::f32), Error);
  const auto x = random_tensor({{2, 8}, DType::f32}, 2);
  const OwnedTensor y({{2, 4}, DType::f32});
  PackedWeight first;
  for_each_isa([&] {
    if (simd::active_isa() == simd::kIsaKinds[0]) first = PackedWeight(pool, w.tensor, DType::f32);
    else EXPECT_THROW(linear(s, y.tensor, x.tensor, first), Error);
  });
}

}  // namespace
}  // namespace hpcdl

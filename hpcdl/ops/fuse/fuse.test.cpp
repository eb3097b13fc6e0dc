#include "hpcdl/ops/fuse/fuse.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "hpcdl/buffer.h"
#include "hpcdl/core/element.h"
#include "hpcdl/ops/activations.h"
#include "hpcdl/ops/fuse/probe.h"
#include "hpcdl/rng.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl::fuse {
namespace {

OwnedTensor random(Shape s, DType d, std::uint64_t stream) {
  OwnedTensor x(Spec{s, d});
  for (std::int64_t i = 0; i < x.tensor.size(); ++i) {
    set_element(x.tensor, i, Rng{3, stream}.normal(static_cast<std::uint64_t>(i)));
  }
  return x;
}

/// Row r of a probe in double.
std::vector<double> reference(Probe which, const View& x, const View& w, const View& b, std::int64_t r) {
  const auto n = x[1];
  std::vector<double> y(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) y[static_cast<std::size_t>(i)] = element(x, r * n + i);
  double mean = 0, square = 0, top = -INFINITY, sum = 0;
  for (double v : y) mean += v / static_cast<double>(n);
  if (which != Probe::layer_norm) mean = 0;
  for (double v : y) square += (v - mean) * (v - mean) / static_cast<double>(n), top = std::max(top, 0.5 * v);
  for (double v : y) sum += std::exp(0.5 * v - top);
  for (std::int64_t i = 0; i < n; ++i) {
    double& v = y[static_cast<std::size_t>(i)];
    switch (which) {
      case Probe::scale_bias_gelu_residual: v = contract::gelu_tanh(2 * v + element(b, i)) + v; break;
      case Probe::softmax: v = std::exp(0.5 * v - top) / sum; break;
      case Probe::rms_norm: v = v / std::sqrt(square + 1e-5) * element(w, i); break;
      case Probe::layer_norm: v = (v - mean) / std::sqrt(square + 1e-5) * element(w, i) + element(b, i); break;
    }
  }
  return y;
}

class FuseProbe : public ::testing::TestWithParam<std::tuple<simd::IsaKind, DType, Probe>> {};

TEST_P(FuseProbe, equals_the_naive_loop) {
  const auto [isa, dtype, which] = GetParam();
  if (isa > simd::best_isa()) GTEST_SKIP() << "this CPU lacks this instruction set";
  Pool pool(2);
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 7}, {5, 64}, {40, 301}, {2, 5000}}) {
    const auto x = random({rows, cols}, dtype, 1), w = random({cols}, dtype, 2), b = random({cols}, dtype, 3);
    OwnedTensor y(x.tensor.spec());
    for (bool accumulate : {false, true}) {
      simd::with_isa(isa, [&](auto tag) {
        probe(tag, pool, which, Grad(y.tensor, accumulate ? Write::accumulate : Write::overwrite), x.tensor, w.tensor,
              b.tensor);
      });
      const double steps = accumulate ? 2 : 1;
      for (std::int64_t r = 0; r < rows; ++r) {
        const auto want = reference(which, x.tensor, w.tensor, b.tensor, r);
        for (std::int64_t i = 0; i < cols; ++i) {
          const double expected = steps * want[static_cast<std::size_t>(i)];
          // Half ulps of the storage type for both passes, and float ulps of a sum of `cols` terms of size below 20.
          const double half_ulp = dtype == DType::bf16 ? 0x1p-9 : 0x1p-25;
          const double allowed =
              2 * steps * half_ulp * std::fabs(expected) + (4 + std::sqrt(static_cast<double>(cols))) * 0x1p-24 * 20;
          ASSERT_NEAR(element(y.tensor, r * cols + i), expected, allowed)
              << rows << "x" << cols << " at " << r << ", " << i;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(all, FuseProbe,
                         ::testing::Combine(::testing::Values(simd::IsaKind::scalar, simd::IsaKind::avx2,
                                                              simd::IsaKind::avx512),
                                            ::testing::Values(DType::f32, DType::bf16),
                                            ::testing::Values(Probe::scale_bias_gelu_residual, Probe::softmax,
                                                              Probe::rms_norm, Probe::layer_norm)));

struct Plus1 {
  template <class V, class At> V operator()(V v, const At&) const { return v + V(1.0f); }
};

// Chains compile anywhere with the scalar set: no .simd.cpp is needed to try one.
TEST(fuse, strided_rows_and_users_own_stages) {
  const auto x = random({4, 10}, DType::f32, 1);
  const View half(x.tensor.ptr<float>() + 5, Spec{{4, 5}, DType::f32}, Shape{10, 1}, {});
  OwnedTensor y(Spec{{4, 5}, DType::f32});
  Pool pool(1);
  run(simd::Scalar{}, pool, y.tensor, chain(load(half), Plus1{}, mul(half)));
  for (std::int64_t r = 0; r < 4; ++r)
    for (std::int64_t i = 0; i < 5; ++i) {
      const float v = x.tensor.ptr<float>()[r * 10 + 5 + i];
      EXPECT_EQ(y.tensor.ptr<float>()[r * 5 + i], (v + 1) * v);
    }
}

TEST(fuse, large_outputs_take_the_streaming_path) {
  const auto x = random({kStreamBytes / 4 / 1000 + 1, 1000}, DType::f32, 4);
  OwnedTensor y(x.tensor.spec());
  Pool pool(2);
  simd::with_isa([&](auto tag) {
    const auto b = OwnedTensor(Spec{{1000}, DType::f32});
    probe(tag, pool, Probe::scale_bias_gelu_residual, Grad(y.tensor, Write::overwrite), x.tensor, b.tensor, b.tensor);
  });
  for (std::int64_t i = 0; i < x.tensor.size(); i += 997) {
    const double v = element(x.tensor, i), want = contract::gelu_tanh(2 * v) + v;
    ASSERT_NEAR(element(y.tensor, i), want, 1e-5) << i;
  }
}

}  // namespace
}  // namespace hpcdl::fuse

#include "hpcdl/ops/layer_norm/layer_norm.spec.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Expected;
using testing::Input;
using testing::Values;

const auto f32 = DType::f32;

const auto
    plain =
        testing::op<LayerNorm>(
            {
                .cases =
                    {
                        // One column has no variance: rounding errors are amplified by 1 / sqrt(eps).
                        {.in = {{1, 1}, {1}, {1}}, .args = {.eps = 0.25f}},
                        {.in = {{3, 7}, {7}, {7}}},
                        {.in = {{2, 5, 16}, {16}, Input::none()}},
                        {.in = {{37, 64}, {64}, {64}}, .args = {.eps = 1e-6f}},
                        {.in = {{9, 133}, Input{133}.as(f32), Input{133}.as(f32)}},
                        {.in = {{70, 768}, Input{768}.as(f32), Input{768}.as(f32)}},
                        {.in = {{2, 4099}, {4099}, {4099}}},
                        {.in = {{2100, 24}, {24}, {24}}, .gradient = false},
                        {.in = {{5, 2048}, {2048}, {2048}}, .gradient = false},
                        {.in = {{2, 40004}, {40004}, {40004}},
                         .gradient = false},  // longer than a row that a GPU's block can hold
                        {.in = {{0, 8}, {8}, {8}}},
                    },
                .contracts = contract::layer_norm_contracts(),
                .condition = 4,  // (x - mean) * rstd carries the errors of both statistics
            });

const auto with_residual = testing::op<AddLayerNorm>({
    .cases =
        {
            {.in = {{3, 7}, {3, 7}, {7}, {7}}},
            {.in = {{2, 5, 16}, {2, 5, 16}, Input{16}.as(f32), Input::none()}},
            {.in = {{19, 133}, {19, 133}, {133}, {133}}},
            {.in = {{33, 257}, {33, 257}, Input{257}.as(f32), Input{257}.as(f32)}},
            {.in = {{0, 8}, {0, 8}, {8}, {8}}},
        },
    .reference =
        [](std::span<Expected> out, std::span<const Values> in, const AddLayerNorm::Args& a) {
          Values h = in[0];
          for (std::int64_t i = 0; i < h.size(); ++i) out[0][i] = h[i] += in[1][i];
          contract::layer_norm_reference(out.subspan(1), std::array{h, in[2], in[3]}, a);
        },
    .reduction = [](std::span<const Spec> in, const AddLayerNorm::Args&) { return in[0].size(); },
    .condition = 4,
});

/// A large common offset must not cancel the deviations: the variance of {1e4 + 0, 1e4 + 1, ...} is that of {0, 1,
/// ...}.
TEST(LayerNorm, OffsetDoesNotCancel) {
  constexpr int n = 256;
  std::vector<float> x(n), y(n), gamma(n, 1.0f);
  for (int i = 0; i < n; ++i) x[static_cast<std::size_t>(i)] = 1e4f + static_cast<float>(i % 2);
  Pool pool(1);
  Stream s(pool);
  LayerNorm::forward(s, Tensor(y.data(), {{1, n}, f32}), {}, {}, View(x.data(), {{1, n}, f32}),
                     View(gamma.data(), {{n}, f32}), {}, {});
  for (int i = 0; i < n; ++i) EXPECT_NEAR(y[static_cast<std::size_t>(i)], i % 2 ? 1 : -1, 1e-4);
}

/// A result too large for the cache is written with non-temporal stores: its bits equal, row by row, those of a small
/// one.
TEST(AddLayerNorm, LargeResultsHaveTheBitsOfSmallOnes) {
  constexpr std::int64_t rows = 4400, n = 1030;
  std::vector<float> x(rows * n), res(rows * n), h(rows * n, NAN), y(rows * n, NAN), dx(rows * n, NAN), gamma(n, 0.5f),
      mean(rows), rstd(rows), row_h(n), row_y(n), row_dx(n),
      partial(static_cast<std::size_t>(detail::norm_scratch({{rows, n}, f32}).size()));
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>(i * 7919 % 1000) / 100, res[i] = static_cast<float>(i % 17);
  Pool pool(2);
  Stream s(pool);
  const Spec param{{n}, f32};
  const auto at = [&](std::vector<float>& v, std::int64_t first, std::int64_t count) {
    return Tensor(&v[static_cast<std::size_t>(first * n)], {{count, n}, f32});
  };
  const auto run = [&](std::vector<float>& out_h, std::vector<float>& out_y, std::vector<float>& out_dx,
                       std::int64_t first, std::int64_t count) {
    const Tensor m(&mean[static_cast<std::size_t>(first)], {{count}, f32}),
        r(&rstd[static_cast<std::size_t>(first)], {{count}, f32});
    AddLayerNorm::forward(s, at(out_h, 0, count), at(out_y, 0, count), m, r, at(x, first, count), at(res, first, count),
                          View(gamma.data(), param), {}, {});
    AddLayerNorm::backward(s, Grad(at(out_dx, 0, count), Write::overwrite), {}, {}, {}, View(gamma.data(), param),
                           at(out_h, 0, count), m, r, at(x, first, count), at(res, first, count),
                           Tensor(partial.data(), detail::norm_scratch({{count, n}, f32})), {});
  };
  run(h, y, dx, 0, rows);
  const auto same = [&](const std::vector<float>& row, const std::vector<float>& all, std::int64_t r) {
    return std::memcmp(row.data(), &all[static_cast<std::size_t>(r * n)], n * sizeof(float)) == 0;
  };
  for (std::int64_t r : {0, 1, 2199, 2200, 4399}) {
    run(row_h, row_y, row_dx, r, 1);
    EXPECT_TRUE(same(row_h, h, r)) << r;
    EXPECT_TRUE(same(row_y, y, r)) << r;
    EXPECT_TRUE(same(row_dx, dx, r)) << r;
  }
}

/// A dx written with non-temporal stores uses a separate loop: its bits equal those of the general loop, which
/// accumulates.
TEST(LayerNorm, EveryWayOfBackwardHasTheSameBits) {
  constexpr std::int64_t n = 1024;
  for (std::int64_t rows : {130, 4102}) {
    const Spec spec{{rows, n}, f32}, row{{n}, f32}, stat{{rows}, f32};
    const auto elements = static_cast<std::size_t>(rows * n);
    std::vector<float> x(elements), dy(elements), y(elements), alone(elements, NAN), added(elements, 0.0f),
        gamma(n, 0.75f), mean(static_cast<std::size_t>(rows)), rstd(mean),
        partial(static_cast<std::size_t>(detail::norm_scratch(spec).size())), dgamma(n, NAN), dbeta(n, NAN),
        other_dgamma(n, NAN), other_dbeta(n, NAN);
    for (std::size_t i = 0; i < elements; ++i)
      x[i] = static_cast<float>(i * 7919 % 1000) / 100, dy[i] = static_cast<float>(i * 31 % 77) - 38;
    Pool pool(2);
    Stream s(pool);
    const auto tensor = [](std::vector<float>& v, const Spec& of) { return Tensor(v.data(), of); };
    const Tensor m = tensor(mean, stat), r = tensor(rstd, stat);
    LayerNorm::forward(s, tensor(y, spec), m, r, tensor(x, spec), tensor(gamma, row), {}, {});
    const auto backward = [&](std::vector<float>& dx, Write write, std::vector<float>& dg, std::vector<float>& db) {
      LayerNorm::backward(s, Grad(tensor(dx, spec), write), Grad(tensor(dg, row), Write::overwrite),
                          Grad(tensor(db, row), Write::overwrite), tensor(x, spec), tensor(gamma, row), m, r,
                          tensor(dy, spec), tensor(partial, detail::norm_scratch(spec)), {});
    };
    backward(alone, Write::overwrite, dgamma, dbeta);
    backward(added, Write::accumulate, other_dgamma, other_dbeta);
    EXPECT_EQ(alone, added) << rows;
    EXPECT_EQ(dgamma, other_dgamma) << rows;
    EXPECT_EQ(dbeta, other_dbeta) << rows;
  }
}

/// If only h is used downstream, its gradient is that of x and of the residual, and the parameters' gradient is zero;
/// if only y is used, nothing is added.
TEST(AddLayerNorm, EitherOutputMayHaveNoGradient) {
  constexpr int rows = 3, n = 20;
  const Spec spec{{rows, n}, f32}, row{{n}, f32}, stat{{rows}, f32};
  std::vector<float> h(rows * n), mean(rows), rstd(rows, 1.0f), gamma(n, 2.0f), d(rows * n), dx(rows * n, -1),
      dr(rows * n, 5), dg(n, 9), db(n, 9), with_zero(rows * n), partial(2 * n);
  std::vector<float> zero(rows * n);
  for (std::size_t i = 0; i < d.size(); ++i) d[i] = static_cast<float>(i), h[i] = static_cast<float>(i % 7);
  Pool pool(1);
  Stream s(pool);
  const auto backward = [&](std::vector<float>& out, View dh, View dy) {
    AddLayerNorm::backward(
        s, Grad(Tensor(out.data(), spec), Write::overwrite), Grad(Tensor(dr.data(), spec), Write::accumulate),
        Grad(Tensor(dg.data(), row), Write::overwrite), Grad(Tensor(db.data(), row), Write::overwrite),
        View(gamma.data(), row), View(h.data(), spec), View(mean.data(), stat), View(rstd.data(), stat), dh, dy,
        Tensor(partial.data(), {{1, 2, n}, f32}), {});
  };
  backward(dx, View(d.data(), spec), {});
  for (std::size_t i = 0; i < d.size(); ++i) {
    EXPECT_EQ(dx[i], d[i]);
    EXPECT_EQ(dr[i], 5 + d[i]);
  }
  for (float v : dg) EXPECT_EQ(v, 0);
  for (float v : db) EXPECT_EQ(v, 0);
  backward(dx, {}, View(d.data(), spec));
  backward(with_zero, View(zero.data(), spec), View(d.data(), spec));
  EXPECT_EQ(dx, with_zero);
}

}  // namespace
}  // namespace hpcdl

#include "hpcdl/ops/batch_norm/batch_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/every_isa.h"
#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Expected;
using testing::Input;
using testing::Values;

const auto f32 = DType::f32;

/// The statistics only serve to update the running statistics: the spec does not differentiate them.
struct Plain : BatchNorm {
  static constexpr std::string_view name = "plain_batch_norm";
  static constexpr int kAux = 1;
};
struct WithResidual : AddBatchNorm {
  static constexpr std::string_view name = "residual_batch_norm";
  static constexpr int kAux = 1;
};

void moments(Expected& statistics, const Values& x, std::int64_t channels) {
  const auto n = x.size() / channels;
  for (std::int64_t c = 0; c < channels; ++c) {
    double mean = 0, squares = 0;
    for (std::int64_t r = 0; r < n; ++r) mean += x[r * channels + c];
    mean /= static_cast<double>(n);
    for (std::int64_t r = 0; r < n; ++r) squares += std::pow(x[r * channels + c] - mean, 2);
    statistics[c] = mean;
    statistics[channels + c] = squares / static_cast<double>(n);
    statistics[2 * channels + c] = squares / static_cast<double>(n - 1);
  }
}

/// Absent weight, bias and residual have no elements.
void normalise(Expected& y, const Values& x, const Values& residual, const Values& weight, const Values& bias,
               const double* mean, const double* var, std::int64_t channels, const BatchNorm::Args& a) {
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const auto c = i % channels;
    y[i] = (x[i] - mean[c]) / std::sqrt(var[c] + static_cast<double>(a.eps)) * (weight.size() ? weight[c] : 1) +
           (bias.size() ? bias[c] : 0) + (residual.size() ? residual[i] : 0);
    if (a.relu) y[i] = std::max(y[i], 0.0);
  }
}

std::int64_t rows(const Spec& x) { return x.size() / x[-1]; }

const auto plain = testing::op<Plain>({
    .cases =
        {
            {.in = {{2, 1}, {1}, {1}}, .gradient = false},  // eps alone remains when equal values are subtracted
            {.in = {{3, 1}, {1}, {1}}},
            {.in = {{3, 7}, {7}, {7}}},
            {.in = {{2, 3, 5, 16}, {16}, {16}}, .args = {.relu = true}},
            {.in = {{37, 64}, Input{64}.as(f32), Input{64}.as(f32)}, .args = {.eps = 1e-3f}},
            {.in = {{5, 9, 133}, {133}, {133}}, .args = {.relu = true}},
            {.in = {{71, 3}, Input::none(), Input::none()}},
            {.in = {{4, 515}, {515}, Input::none()}, .args = {.relu = true}},
            {.in = {{129, 24}, {24}, {24}}, .args = {.relu = true}},
            {.in = {{2, 67, 67, 8}, {8}, {8}}, .gradient = false},
        },
    .reference =
        [](std::span<Expected> out, std::span<const Values> in, const BatchNorm::Args& a) {
          const auto channels = in[0].spec[-1];
          moments(out[1], in[0], channels);
          normalise(out[0], in[0], {}, in[1], in[2], &out[1][0], &out[1][channels], channels, a);
        },
    .reduction = [](std::span<const Spec> in, const BatchNorm::Args&) { return rows(in[0]); },
    .condition = 8,  // few rows: 1 / sqrt(var) carries the error of a variance that may be small
});

const auto with_residual = testing::op<WithResidual>({
    .cases =
        {
            {.in = {{3, 7}, {3, 7}, {7}, {7}}},
            {.in = {{2, 3, 5, 16}, {2, 3, 5, 16}, {16}, {16}}, .args = {.relu = true}},
            {.in = {{69, 33}, {69, 33}, {33}, Input{33}.as(f32)}, .args = {.relu = true}},
            {.in = {{9, 257}, {9, 257}, Input::none(), Input::none()}},
        },
    .reference =
        [](std::span<Expected> out, std::span<const Values> in, const BatchNorm::Args& a) {
          const auto channels = in[0].spec[-1];
          moments(out[1], in[0], channels);
          normalise(out[0], in[0], in[1], in[2], in[3], &out[1][0], &out[1][channels], channels, a);
        },
    .reduction = [](std::span<const Spec> in, const BatchNorm::Args&) { return rows(in[0]); },
    .condition = 8,
});

Input given(std::int64_t channels) { return Input{channels}.as(f32).filled(testing::Fill::positive).fixed(); }

const auto inference = testing::op<BatchNormInference>({
    .cases =
        {
            {.in = {{1, 1}, Input::none(), {1}, {1}, given(1), given(1)}},
            {.in = {{3, 7}, Input::none(), {7}, {7}, given(7), given(7)}, .args = {.relu = true}},
            {.in = {{3, 7, 33}, {3, 7, 33}, {33}, {33}, given(33), given(33)}, .args = {.relu = true}},
            {.in = {{5, 70, 33}, {5, 70, 33}, {33}, {33}, given(33), given(33)}},
            {.in = {{9, 257}, {9, 257}, Input::none(), Input::none(), given(257), given(257)}},
            {.in = {{0, 8}, Input::none(), {8}, {8}, given(8), given(8)}},
        },
    .reference =
        [](std::span<Expected> out, std::span<const Values> in, const BatchNorm::Args& a) {
          normalise(out[0], in[0], in[1], in[2], in[3], in[4].v.data(), in[5].v.data(), in[0].spec[-1], a);
        },
    .reduction = [](std::span<const Spec> in, const BatchNorm::Args&) { return rows(in[0]); },
    .condition = 4,  // 1 / sqrt(var + eps) with var >= 0.1
});

// ---------------------------------------------------------------- large means

/// x = 1000 + a standard normal value: a naive sum of squares would give a variance that is off by several percent.
TEST(BatchNormTest, LargeMeans) {
  constexpr std::int64_t n = 20000, channels = 19;
  std::vector<float> x(n * channels), y(n * channels), statistics(3 * channels);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(1000 + Rng{7}.normal(i));
  const Spec xs{{n, channels}, f32};
  OwnedTensor partial(batch_partial(xs));
  const Values in{xs, {x.begin(), x.end()}};
  Expected want({{3, channels}, f32});
  moments(want, in, channels);
  Pool pool(2);
  Stream s(pool);
  testing::for_each_isa([&] {
    BatchNorm::forward(s, Tensor(y.data(), xs), Tensor(statistics.data(), {{3, channels}, f32}), View(x.data(), xs), {},
                       {}, partial.tensor, {});
    for (std::size_t c = 0; c < channels; ++c) {
      EXPECT_NEAR(static_cast<double>(statistics[c]), want[static_cast<std::int64_t>(c)], 0x1p-14) << "the ulp of 1000";
      // Deviations are exact to the ulp of 1000 / 2; n of these errors enter the sum, with either sign.
      EXPECT_NEAR(static_cast<double>(statistics[channels + c]), want[static_cast<std::int64_t>(channels + c)], 1e-5);
      EXPECT_NEAR(static_cast<double>(statistics[2 * channels + c]), want[static_cast<std::int64_t>(2 * channels + c)],
                  1e-5);
    }
    for (std::size_t i = 0; i < y.size(); ++i) {
      const auto c = static_cast<std::int64_t>(i % channels);
      const double z = (static_cast<double>(x[i]) - want[c]) / std::sqrt(want[channels + c] + 1e-5);
      ASSERT_NEAR(static_cast<double>(y[i]), z, 5e-5 + 2e-5 * std::fabs(z));
    }
  });
}

TEST(BatchNormTest, ConstantChannelsHaveNoVariance) {
  std::vector<float> x(300, 1234.567f), y(300), statistics(9);
  const Spec xs{{100, 3}, f32};
  OwnedTensor partial(batch_partial(xs));
  Pool pool(1);
  Stream s(pool);
  BatchNorm::forward(s, Tensor(y.data(), xs), Tensor(statistics.data(), {{3, 3}, f32}), View(x.data(), xs), {}, {},
                     partial.tensor, {});
  for (std::size_t c = 0; c < 3; ++c) {
    EXPECT_EQ(statistics[c], 1234.567f);
    EXPECT_EQ(statistics[3 + c], 0);
  }
  EXPECT_EQ(y[17], 0);
}

// ---------------------------------------------------------------- running statistics

/// A layer with its own memory, run eagerly or as a program, recomputed or not.
struct Layer {
  static constexpr std::int64_t n = 24, channels = 5;
  OwnedTensor x{{{n, channels}, f32}}, weight{{{channels}, f32}}, bias{{{channels}, f32}}, dweight{{{channels}, f32}},
      dbias{{{channels}, f32}};
  OwnedTensor mean{{{channels}, f32}}, var{{{channels}, f32}}, out{{{n, channels}, f32}};

  Layer() {
    for (std::int64_t c = 0; c < channels; ++c) {
      weight.tensor.ptr<float>()[c] = 1, bias.tensor.ptr<float>()[c] = 0;
      mean.tensor.ptr<float>()[c] = 0.25f, var.tensor.ptr<float>()[c] = 2;
    }
    fill(0);
  }
  void fill(std::uint64_t batch) {
    for (std::int64_t i = 0; i < x.tensor.size(); ++i)
      x.tensor.ptr<float>()[i] = static_cast<float>(3 + 2 * Rng{batch, 9}.normal(static_cast<std::uint64_t>(i)));
  }
  void record(Graph& g, bool recompute) {
    const Var in = g.constant("x", x.tensor);
    const auto f = [&] {
      return batch_norm(in, g.parameter("w", weight.tensor, dweight.tensor),
                        g.parameter("b", bias.tensor, dbias.tensor), g.constant("mean", mean.tensor),
                        g.constant("var", var.tensor), {.momentum = 0.3f, .relu = true});
    };
    const Var y = recompute ? g.checkpoint(f) : f();
    g.backward(y, g.constant("dy", out.tensor));
  }
  /// Two batches, by torch's rules.
  void expect_two_updates() const {
    std::vector<double> m(channels, 0.25), v(channels, 2);
    for (std::uint64_t batch = 0; batch < 2; ++batch) {
      Layer other;
      other.fill(batch);
      Values in{{{n, channels}, f32}, {}};
      Expected statistics({{3, channels}, f32});
      for (std::int64_t i = 0; i < n * channels; ++i)
        in.v.push_back(static_cast<double>(other.x.tensor.ptr<float>()[i]));
      moments(statistics, in, channels);
      for (std::int64_t c = 0; c < channels; ++c) {
        m[static_cast<std::size_t>(c)] = 0.7 * m[static_cast<std::size_t>(c)] + 0.3 * statistics[c];
        v[static_cast<std::size_t>(c)] = 0.7 * v[static_cast<std::size_t>(c)] + 0.3 * statistics[2 * channels + c];
      }
    }
    for (std::size_t c = 0; c < channels; ++c) {
      EXPECT_NEAR(static_cast<double>(mean.tensor.ptr<float>()[c]), m[c], 1e-5);
      EXPECT_NEAR(static_cast<double>(var.tensor.ptr<float>()[c]), v[c], 1e-5);
    }
  }
};

TEST(BatchNormTest, EveryRunUpdatesTheRunningStatisticsOnce) {
  Pool pool(2);
  Stream s(pool);
  Layer eager, recomputed, replayed;
  for (std::uint64_t batch = 0; batch < 2; ++batch) {
    eager.fill(batch);
    Graph g({.eager = &s});
    eager.record(g, false);
  }
  eager.expect_two_updates();
  for (Layer* layer : {&replayed, &recomputed}) {
    Graph g;
    layer->record(g, layer == &recomputed);
    const auto again = std::count_if(g.program().records.begin(), g.program().records.end(),
                                     [](const Record& r) { return r.phase == Phase::recompute; });
    EXPECT_EQ(again, layer == &recomputed ? 1 : 0) << "the op must be recomputed, the update must not";
    Instance exe(g.finish());
    for (std::uint64_t batch = 0; batch < 2; ++batch) {
      layer->fill(batch);
      exe.run(s);
    }
    EXPECT_EQ(std::memcmp(layer->mean.tensor.data(), eager.mean.tensor.data(), sizeof(float) * Layer::channels), 0);
    EXPECT_EQ(std::memcmp(layer->var.tensor.data(), eager.var.tensor.data(), sizeof(float) * Layer::channels), 0);
  }
}

TEST(BatchNormTest, RefusesWhatCannotBeNormalised) {
  Graph g;
  const Var c3 = g.input("c", {{3}, f32}), x = g.input("x", {{4, 3}, f32}), one = g.input("one", {{1, 3}, f32}), none;
  EXPECT_THROW(batch_norm(one, c3, c3, none, none), Error) << "one value per channel";
  EXPECT_THROW(batch_norm(x, g.input("w", {{4}, f32}), c3, none, none), Error);
  EXPECT_THROW(batch_norm(x, c3, c3, g.input("m", {{3}, DType::bf16}), c3), Error);
  EXPECT_THROW(batch_norm(x, c3, c3, c3, c3, {}, one), Error) << "a residual of another shape";
}

}  // namespace
}  // namespace hpcdl

#include "hpcdl/ops/loss_scale/loss_scale.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/ops/adamw/adamw.h"
#include "hpcdl/ops/grad_norm/grad_norm.h"
#include "hpcdl/testing/devices.h"

namespace hpcdl {
namespace {

constexpr std::int64_t kSize = 5000;
constexpr float kInf = std::numeric_limits<float>::infinity();

/// One parameter, its optimizer and, unless `scaled` is false, the scale; everything is on `device`.
struct Optimizer {
  Device device;
  Pool pool{2};
  StepParams params;
  Stream s;
  OwnedTensor value, gradient, m, v, scale, counts;
  Instance exe;

  explicit Optimizer(Device d, bool scaled, LossScale::Args a = {})
      : device(d),
        s(d, pool, &params),
        value({{kSize}, DType::f32}, d),
        gradient(value.tensor.spec(), d),
        m(value.tensor.spec(), d),
        v(value.tensor.spec(), d),
        scale(LossScale::kScale, d),
        counts(LossScale::kCounts, d),
        exe(record(scaled, a), nullptr, d) {}

  Recording record(bool scaled, LossScale::Args a) {
    Graph g;
    const Var dw = g.constant("w.grad", gradient.tensor);
    const auto update = [&] {
      record_grad_norm(g, std::vector{dw}, {.max_norm = 1});
      record_adamw(g,
                   std::vector{AdamWTensor<Var>{.value = g.constant("w", value.tensor),
                                                .gradient = dw,
                                                .m = g.constant("m", m.tensor),
                                                .v = g.constant("v", v.tensor)}},
                   {});
    };
    if (!scaled) return update(), g.finish();
    record_loss_scale(g, g.constant("scale", scale.tensor), g.constant("counts", counts.tensor), a, update);
    return g.finish();
  }
  template <class T> std::vector<T> read(const Tensor& t) {
    std::vector<T> host(static_cast<std::size_t>(t.bytes()) / sizeof(T));
    copy(s, Tensor(host.data(), t.spec()), t);
    s.synchronize();
    return host;
  }
  template <class T> void write(const Tensor& t, const std::vector<T>& host) {
    copy(s, t, View(host.data(), t.spec()));
    s.synchronize();
  }
  float scale_now() { return read<float>(scale.tensor)[0]; }
  LossScale::Counts counts_now() { return read<LossScale::Counts>(counts.tensor)[0]; }
  /// A step with gradients equal to `factor` times random draw `batch`; the last gradient is replaced by `last` unless
  /// that is 0.
  void step(std::int64_t number, float factor, float last = 0, std::int64_t batch = 0) {
    std::vector<float> g(kSize);
    for (std::int64_t i = 0; i < kSize; ++i)
      g[static_cast<std::size_t>(i)] = factor * static_cast<float>((i * 37 + batch * 11) % 101 - 50);
    if (last != 0) g.back() = last;
    write(gradient.tensor, g);
    params.step = number, params.lr = 1e-2f, params.grad_scale = 1.0f / 32;
    exe.run(s);
    s.pull_params();
  }
  std::vector<float> all() {
    auto list = read<float>(value.tensor);
    for (const auto* t : {&m, &v})
      for (float x : read<float>(t->tensor)) list.push_back(x);
    return list;
  }
};

class LossScaleTest : public ::testing::TestWithParam<Device> {};

TEST_P(LossScaleTest, PowersOfTwoChangeNoBit) {
  Optimizer plain(GetParam(), false), scaled(GetParam(), true);
  scaled.write<float>(scaled.scale.tensor, {1024});
  for (int i = 0; i < 4; ++i) plain.step(i, 1, 0, i), scaled.step(i, 1024, 0, i);
  EXPECT_EQ(plain.all(), scaled.all());
  EXPECT_EQ(plain.params.grad_norm, scaled.params.grad_norm);
  EXPECT_EQ(scaled.counts_now().good, 4);
}

TEST_P(LossScaleTest, AnOverflowSkipsTheStepAndHalvesTheScale) {
  Optimizer o(GetParam(), true), undisturbed(GetParam(), true);
  o.write<float>(o.scale.tensor, {8});
  undisturbed.write<float>(undisturbed.scale.tensor, {4});
  o.step(0, 8), undisturbed.step(0, 4);
  const auto before = o.all();
  for (float bad : {kInf, std::numeric_limits<float>::quiet_NaN()}) {
    o.write<float>(o.scale.tensor, {8});
    o.step(1, 8, bad);
    EXPECT_EQ(o.params.skip, 1);
    EXPECT_EQ(o.scale_now(), 4);
    EXPECT_EQ(o.all(), before);
    EXPECT_EQ(o.counts_now().good, 0);
  }
  EXPECT_EQ(o.counts_now().skipped, 2);
  // The optimizer continues as if the skipped steps had not happened.
  o.step(3, 4, 0, 7), undisturbed.step(1, 4, 0, 7);
  EXPECT_NE(o.all(), before);
  EXPECT_EQ(o.all(), undisturbed.all());
}

TEST_P(LossScaleTest, GrowsAfterGoodStepsInARow) {
  Optimizer o(GetParam(), true, {.growth = 4, .most = 32, .interval = 3});
  o.write<float>(o.scale.tensor, {1});
  const auto run = [&](int steps, float last = 0) {
    for (int i = 0; i < steps; ++i) o.step(i, 1, last);
    return o.scale_now();
  };
  EXPECT_EQ(run(2), 1);
  EXPECT_EQ(run(1), 4);
  EXPECT_EQ(run(2), 4);
  EXPECT_EQ(run(1, kInf), 2);
  EXPECT_EQ(run(2), 2) << "the count must start again";
  EXPECT_EQ(run(1), 8);
  EXPECT_EQ(run(3), 32);
  EXPECT_EQ(run(3), 32) << "must stay at the limit";
}

TEST_P(LossScaleTest, TheFloorIsCounted) {
  Optimizer o(GetParam(), true, {.least = 2});
  o.write<float>(o.scale.tensor, {4});
  o.step(0, 1, kInf);
  EXPECT_EQ(o.scale_now(), 2);
  EXPECT_EQ(o.counts_now().stuck, 0);
  for (int i = 1; i <= 2; ++i) {
    o.step(i, 1, kInf);
    EXPECT_EQ(o.scale_now(), 2);
    EXPECT_EQ(o.counts_now().stuck, i);
  }
  o.step(3, 1);
  EXPECT_EQ(o.counts_now().stuck, 0);
  EXPECT_EQ(o.counts_now().skipped, 3);
}

INSTANTIATE_TEST_SUITE_P(On, LossScaleTest, ::testing::ValuesIn(testing::devices()), testing::device_kind);

TEST(LossScale, RejectsWhatCannotWork) {
  Graph g;
  const auto scale = g.input("scale", LossScale::kScale), counts = g.input("counts", LossScale::kCounts);
  const auto none = [] {};
  EXPECT_THROW(record_loss_scale(g, counts, counts, {}, none), Error);
  EXPECT_THROW(record_loss_scale(g, scale, scale, {}, none), Error);
  EXPECT_THROW(record_loss_scale(g, scale, counts, {.backoff = 1}, none), Error);
  EXPECT_THROW(record_loss_scale(g, scale, counts, {.interval = 0}, none), Error);
}

}  // namespace
}  // namespace hpcdl

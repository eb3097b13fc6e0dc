// The scaler against torch.amp.GradScaler (golden file of golden/make_grad_scaler.py), and its purpose.

#include "hpcdl/optim/grad_scaler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/instance.h"
#include "hpcdl/io/file.h"
#include "hpcdl/io/json.h"
#include "hpcdl/ops/adamw/adamw.h"
#include "hpcdl/ops/cross_entropy/cross_entropy.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/devices.h"

namespace hpcdl {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// A single number w, whose gradient is given in each step.
struct OneWeight {
  Pool pool{1};
  StepParams params;
  Stream s;
  GradScaler scaler;
  OwnedTensor w, dw, m, v;
  Instance exe;

  OneWeight(Device d, const GradScaler::Options& o)
      : s(d, pool, &params),
        scaler(o, d),
        w(spec(), d),
        dw(spec(), d),
        m(spec(), d),
        v(spec(), d),
        exe(record(), nullptr, d) {
    put(w, 1), put(m, 0), put(v, 0);
    params.lr = 0.125f;
  }
  static Spec spec() { return {{1}, DType::f32}; }
  Recording record() {
    Graph g;
    const Var gradient = g.constant("dw", dw.tensor);
    scaler.step(g, std::vector{gradient}, {.max_norm = 0}, [&] {
      record_adamw(g,
                   std::vector{AdamWTensor<Var>{.value = g.constant("w", w.tensor),
                                                .gradient = gradient,
                                                .m = g.constant("m", m.tensor),
                                                .v = g.constant("v", v.tensor),
                                                .decay = false}},
                   {.beta1 = 0.9f, .beta2 = 0.95f});
    });
    return g.finish();
  }
  void put(const OwnedTensor& t, float x) {
    copy(s, t.tensor, View(&x, spec()));
    s.synchronize();
  }
  float weight() {
    float x = 0;
    copy(s, Tensor(&x, spec()), w.tensor);
    s.synchronize();
    return x;
  }
  /// Sets the gradient that the scaled loss w / 2 would have.
  void step(std::int64_t number, bool overflow) {
    put(dw, overflow ? kInf : 0.5f * scaler.state(s).scale);
    params.step = number, params.grad_scale = 1, params.skip = 0;
    exe.run(s);
    s.pull_params();
  }
};

class Scaler : public ::testing::TestWithParam<Device> {};
INSTANTIATE_TEST_SUITE_P(devices, Scaler, ::testing::ValuesIn(testing::devices()), testing::device_kind);

TEST_P(Scaler, does_as_torch_does) {
  const auto path = std::string(HPCDL_SOURCE_DIR) + "/hpcdl/optim/golden/grad_scaler.json";
  const auto runs = io::parse_json(io::read_file(path), path);
  ASSERT_EQ(runs.size(), 5u);
  for (const auto& run : runs) {
    SCOPED_TRACE(run.at("name").get<std::string>());
    const auto& settings = run.at("settings");
    GradScaler::Options o;
    o.init_scale = settings.value("init_scale", o.init_scale),
    o.growth_factor = settings.value("growth_factor", o.growth_factor);
    o.backoff_factor = settings.value("backoff_factor", o.backoff_factor),
    o.growth_interval = settings.value("growth_interval", o.growth_interval);
    OneWeight one(GetParam(), o);
    std::int32_t skipped = 0;
    for (std::size_t i = 0; i < run.at("steps").size(); ++i) {
      const bool overflow = run.at("overflow")[i].get<bool>();
      const auto& want = run.at("steps")[i];
      one.step(static_cast<std::int64_t>(i), overflow);
      skipped += overflow;
      const auto now = one.scaler.state(one.s);
      EXPECT_EQ(now.scale, want.at("scale").get<float>()) << "step " << i;
      EXPECT_EQ(now.counts.good, want.at("tracker").get<std::int32_t>()) << "step " << i;
      EXPECT_EQ(now.counts.skipped, skipped);
      // The weight changes in steps of lr; both sides round each of them.
      EXPECT_NEAR(one.weight(), want.at("weight").get<float>(), 0x1p-20) << "step " << i;
    }
  }
}

TEST_P(Scaler, state_goes_into_a_checkpoint_and_back) {
  const GradScaler::Options o{.init_scale = 512, .growth_interval = 3, .terms = 100};
  OneWeight whole(GetParam(), o), second(GetParam(), o);
  const bool overflow[] = {false, true, false, false, false, true, false, false, false, false};
  std::vector<float> scales;
  for (int i = 0; i < 10; ++i) {
    whole.step(i, overflow[i]);
    scales.push_back(whole.scaler.state(whole.s).scale);
    if (i == 3) second.scaler.set_state(second.s, whole.scaler.state(whole.s));
  }
  for (int i = 4; i < 10; ++i) {
    second.step(i, overflow[i]);
    EXPECT_EQ(second.scaler.state(second.s).scale, scales[static_cast<std::size_t>(i)]) << i;
  }
  EXPECT_EQ(second.scaler.state(second.s).counts.skipped, 2);
}

TEST(scaler, is_of_the_mean_and_changes_no_bit) {
  Pool pool(1);
  StepParams params;
  Stream s(pool, &params);
  const auto gradient = [&](const GradScaler* scaler) {  // of w in sum(CE(w)), 5 rows
    OwnedTensor w({{5, 3}, DType::f32}), dw(w.tensor.spec()), labels({{5}, DType::i32});
    for (int i = 0; i < 15; ++i) w.tensor.ptr<float>()[i] = static_cast<float>(i % 4) * 0.3f;
    for (int i = 0; i < 5; ++i) labels.tensor.ptr<std::int32_t>()[i] = i % 3;
    Graph g({.eager = &s});
    const Var loss = cross_entropy(g.parameter("w", w.tensor, dw.tensor), g.constant("labels", labels.tensor))[0];
    if (scaler) scaler->backward(g, loss);
    else g.backward(loss);
    return std::vector<float>(dw.tensor.ptr<float>(), dw.tensor.ptr<float>() + 15);
  };
  const GradScaler scaler({.terms = 5});
  EXPECT_EQ(scaler.state(s).scale, 65536);
  auto scaled = gradient(&scaler);
  for (auto& x : scaled) x /= 65536.0f / 8;  // 5 terms are rounded up to 8
  EXPECT_EQ(scaled, gradient(nullptr));
}

/// XOR of two signs by one hidden layer, with the mean loss over the pixels of many images; a step here uses 256 of
/// them.
struct Xor {
  static constexpr std::int64_t kRows = 256, kHidden = 32, kTerms = std::int64_t{1} << 26;
  double loss = 0;       // mean, at the end
  bool all_zero = true;  // whether all gradients of all steps were zero
  GradScaler::State state;

  Xor(DType compute, float init_scale) {
    Pool pool(2);
    StepParams params;
    Stream s(pool, &params);
    GradScaler scaler({.init_scale = init_scale, .growth_interval = 1 << 30, .terms = kTerms});
    OwnedTensor x({{kRows, 3}, DType::f32}), labels({{kRows}, DType::i32});
    for (std::int64_t i = 0; i < kRows; ++i) {
      float* row = x.tensor.ptr<float>() + i * 3;
      row[0] = i % 2 ? 1.0f : -1.0f, row[1] = i / 2 % 2 ? 1.0f : -1.0f, row[2] = 1;
      for (int k = 0; k < 2; ++k)
        row[k] += 0.2f * static_cast<float>(Rng{3, 1}.normal(static_cast<std::uint64_t>(i * 2 + k)));
      labels.tensor.ptr<std::int32_t>()[i] = i % 2 != i / 2 % 2;
    }
    struct Weight {
      Spec spec;
      OwnedTensor w{spec}, d{spec}, m{spec}, v{spec};
    };
    Weight weights[] = {{{{kHidden, 3}, DType::f32}}, {{{2, kHidden}, DType::f32}}};
    Graph g, o;
    std::vector<AdamWTensor<Var>> update;
    std::vector<Var> layers, gradients;
    for (auto& w : weights) {
      const auto name = "w" + std::to_string(update.size());
      for (std::int64_t k = 0; k < w.w.tensor.size(); ++k)
        w.w.tensor.ptr<float>()[k] =
            0.02f * static_cast<float>(Rng{3, 2 + update.size()}.normal(static_cast<std::uint64_t>(k)));
      std::memset(w.m.tensor.data(), 0, static_cast<std::size_t>(w.m.tensor.bytes()));
      std::memset(w.v.tensor.data(), 0, static_cast<std::size_t>(w.v.tensor.bytes()));
      layers.push_back(g.parameter(name, w.w.tensor, w.d.tensor));
      gradients.push_back(o.constant(name + ".grad", w.d.tensor));
      update.push_back({.value = o.constant(name, w.w.tensor),
                        .gradient = gradients.back(),
                        .m = o.constant(name + ".m", w.m.tensor),
                        .v = o.constant(name + ".v", w.v.tensor)});
    }
    const Graph::Autocast mixed(g, AutocastPolicy{.product = compute});
    const Var hidden = linear(g.constant("x", x.tensor), layers[0], {}, {.activation = Activation::gelu_tanh});
    const Var sum = g.keep(cross_entropy(linear(hidden, layers[1]), g.constant("labels", labels.tensor))[0]);
    scaler.backward(g, sum);
    scaler.step(o, gradients, {.max_norm = 0}, [&] { record_adamw(o, update, {}); });
    const Instance pass(g.finish()), step(o.finish());
    params.lr = 1e-2f;
    for (params.step = 0; params.step < 200;) {
      pass.run(s);
      for (auto& w : weights)
        for (std::int64_t k = 0; k < w.d.tensor.size(); ++k) all_zero &= w.d.tensor.ptr<float>()[k] == 0;
      const auto number = params.step;
      params.grad_scale = 1.0f / kRows, params.skip = 0;
      step.run(s);
      params.step = number + 1;
    }
    loss = static_cast<double>(*pass.tensor(sum).ptr<float>()) / kRows;
    state = scaler.state(s);
  }
};

TEST(scaler, f16_gradients_vanish_without_it_and_the_model_learns_with_it) {
  const Xor without(DType::f16, 1), with(DType::f16, 65536), bf16(DType::bf16, 1), f32(DType::f32, 1);
  EXPECT_TRUE(without.all_zero) << "(p - 1) / 2^26 is below half of the smallest f16";
  EXPECT_GT(without.loss, 0.69) << "ln 2: nothing was learned";
  EXPECT_FALSE(with.all_zero);
  EXPECT_LT(with.loss, 0.1);
  EXPECT_EQ(with.state.counts.skipped, 0);
  // The range was the cause: types with the range of f32 need no scale.
  EXPECT_LT(bf16.loss, 0.1);
  EXPECT_LT(f32.loss, 0.1);
}

TEST(scaler, finds_its_scale_from_above) {
  const Xor far(DType::f16, 0x1p60f);
  EXPECT_GT(far.state.counts.skipped, 10);
  EXPECT_LT(far.state.scale, 0x1p45f);
  EXPECT_LT(far.loss, 0.1);
}

TEST(scaler, mistakes_are_reported) {
  EXPECT_THROW(GradScaler({.terms = 0}), Error);
  EXPECT_THROW(GradScaler({.init_scale = -1}), Error);
  Pool pool(1);
  GradScaler scaler({});
  EXPECT_THROW(scaler.set_state(Stream(pool), {kInf, {}}), Error);
  Graph g;
  EXPECT_THROW(GradScaler({.growth_factor = 0.5f}).around(g, [] {}), Error);
}

}  // namespace
}  // namespace hpcdl

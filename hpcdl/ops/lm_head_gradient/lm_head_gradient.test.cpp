#include "hpcdl/ops/lm_head_gradient/lm_head_gradient.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/ops/cast/cast.h"
#include "hpcdl/ops/lm_head_loss/lm_head_loss.spec.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/devices.h"
#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Expected;
using testing::Input;
using testing::Values;

const auto f32 = DType::f32;

/// loss, count, dh, dw
void reference(std::span<Expected> out, std::span<const Values> in, const LmHeadGradient::Args&) {
  Expected loss[] = {out[0], out[1], Expected({{2, in[2].size()}, f32}), Expected()};
  contract::lm_head_reference(loss, in, {});
  const std::array all{in[0], in[1], in[2], Values{loss[2].spec, loss[2].value}, Values(), Values{{{1}, f32}, {1}}};
  contract::lm_head_backward_reference(out.subspan(2), all, {});
  out[0] = loss[0], out[1] = loss[1];
}

// Moderate inputs and `condition` as in lm_head_loss.test.cpp. On a GPU logits are rounded to 16 bits before exp(),
// which the type's tolerance at that condition allows. The auxiliary outputs are gradients times unit(): f16 is tested
// below.
const auto
    spec =
        testing::op<LmHeadGradient>(
            {
                .cases =
                    {
                        {.in = {{1, 1}, {1, 1}, Input::indices({1}, 1)}},
                        {.in = {{5, 7}, {9, 7}, Input::indices({5}, 9)}},
                        {.in = {{2, 6, 16}, {70, 16}, Input::indices({2, 6}, 70, true)}},
                        {.in = {{3, 8}, {1100, 8}, Input::indices({3}, 1100)}},
                        {.in = {{30, 4}, {54000, 4}, Input::indices({30}, 54000, true)},
                         .gradient = false},  // longer than what registers hold
                        {.in = {{0, 4}, {6, 4}, Input::indices({0}, 6)}},
                    },
                .reference = reference,
                .reduction = [](std::span<const Spec> in,
                                const LmHeadGradient::Args&) { return in[2].size() * in[1].size(); },
                .condition = 16,
                .bf16 = false,
                .outliers = false,
            });

struct Run {
  float loss = 0, count = 0;
  std::vector<float> dh, dw;
};

/// Loss and gradients of h and W, by either op, with an upstream gradient of `upstream`.
template <class Record> Run run(Device device, DType type, float upstream, Record&& record, bool frozen = false) {
  constexpr std::int64_t rows = 700, c = 24, vocab = 2100;
  Pool pool(2);
  StepParams params;
  Stream s(device, pool, &params);
  OwnedTensor w({{vocab, c}, DType::f32}), h({{rows, c}, DType::f32}), t({{rows}, DType::i32}), seed({{1}, DType::f32});
  const auto fill = [](const Tensor& x, std::uint64_t stream) {
    for (std::int64_t i = 0; i < x.size(); ++i)
      x.ptr<float>()[i] =
          static_cast<float>(bf16(0.5f * static_cast<float>(Rng{3, stream}.normal(static_cast<std::uint64_t>(i)))));
  };
  fill(w.tensor, 1), fill(h.tensor, 2);
  for (std::int64_t i = 0; i < rows; ++i)
    t.tensor.ptr<std::int32_t>()[i] = i % 5 == 4 ? -1 : static_cast<std::int32_t>(i * 7919 % vocab);
  *seed.tensor.ptr<float>() = upstream;
  OwnedTensor there_w(w.tensor.spec(), device), dw(w.tensor.spec(), device), there_h(h.tensor.spec(), device),
      dh(h.tensor.spec(), device), there_seed(seed.tensor.spec(), device);
  copy(s, there_w.tensor, w.tensor), copy(s, there_h.tensor, h.tensor), copy(s, there_seed.tensor, seed.tensor);
  Graph g;
  const Var target = g.input("t", t.tensor.spec());
  const Var x = cast(g.parameter("h", there_h.tensor, dh.tensor), type);
  const Var weights = frozen ? g.constant("w", there_w.tensor) : g.parameter("w", there_w.tensor, dw.tensor);
  const auto [loss, count] = record(x, weights, target);
  g.backward(loss, g.constant("seed", there_seed.tensor));
  g.keep(loss), g.keep(count);
  Instance exe(g.finish(), nullptr, device);
  copy(s, exe.tensor(target), t.tensor);
  exe.run(s);
  Run r;
  copy(s, Tensor(&r.loss, {{1}, DType::f32}), exe.tensor(loss)),
      copy(s, Tensor(&r.count, {{1}, DType::f32}), exe.tensor(count));
  for (auto [from, to] : {std::pair(&dh, &r.dh), std::pair(&dw, &r.dw)}) {
    if (frozen && from == &dw) continue;
    to->resize(static_cast<std::size_t>(from->tensor.size()));
    copy(s, Tensor(to->data(), from->tensor.spec()), from->tensor);
  }
  return r;
}

const auto now = [](const Var& h, const Var& w, const Var& t) { return lm_head_gradient(h, w, t); };
const auto later = [](const Var& h, const Var& w, const Var& t) { return lm_head_loss(h, w, t); };

TEST(LmHeadGradient, FrozenWeightsChangeNoBitOfTheRest) {
  const auto alone = [](const Var& h, const Var& w, const Var& t) {
    return lm_head_gradient(h, w, t, {.frozen = true});
  };
  for (const auto device : testing::devices())
    for (const auto type : {DType::f32, DType::bf16}) {
      const auto a = run(device, type, 1, now), b = run(device, type, 1, alone, true);
      EXPECT_EQ(a.loss, b.loss);
      EXPECT_EQ(a.count, b.count);
      EXPECT_EQ(a.dh, b.dh);
    }
}

TEST(LmHeadGradient, OnACpuTheBitsOfTheLossAlone) {
  for (auto type : {DType::f32, DType::bf16}) {
    const auto a = run(Device::cpu(), type, 1, now), b = run(Device::cpu(), type, 1, later);
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.count, b.count);
    EXPECT_EQ(a.dh, b.dh);
    EXPECT_EQ(a.dw, b.dw);
  }
}

/// Relative to the largest: gradients in either type are sums with many rounding errors of about one unit each.
double distance(const std::vector<float>& a, const std::vector<float>& b, float factor) {
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst =
        std::max(worst, std::fabs(static_cast<double>(a[i]) * static_cast<double>(factor) - static_cast<double>(b[i])));
    largest = std::max(largest, std::fabs(static_cast<double>(b[i])));
  }
  return worst / largest;
}

class LmHeadGradientOn : public ::testing::TestWithParam<Device> {};

TEST_P(LmHeadGradientOn, AgreesWithTheLossInF32) {
  const auto want = run(Device::cpu(), DType::f32, 1, later);
  for (auto type : {DType::f32, DType::bf16, DType::f16}) {
    if (type == DType::f16 && !GetParam().is_cuda()) continue;
    const auto got = run(GetParam(), type, 0.5f, now);
    const double unit = type == DType::f32 ? 0x1p-18 : type == DType::bf16 ? 0x1p-7 : 0x1p-10;
    EXPECT_EQ(got.count, want.count);
    EXPECT_NEAR(got.loss / want.loss, 1, unit);
    EXPECT_LT(distance(got.dh, want.dh, 2), 4 * unit) << dtype_name(type);
    EXPECT_LT(distance(got.dw, want.dw, 2), 4 * unit) << dtype_name(type);
  }
}

INSTANTIATE_TEST_SUITE_P(On, LmHeadGradientOn, ::testing::ValuesIn(testing::devices()), testing::device_kind);

}  // namespace
}  // namespace hpcdl

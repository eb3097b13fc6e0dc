// The history of magnitudes against a naive one: a list of the last steps for each tensor.

#include "hpcdl/ops/fp8_amax/fp8_amax.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <limits>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/devices.h"

namespace hpcdl {
namespace {

constexpr std::int64_t kLayers = 3, kTensors = Fp8Amax::kTensors * kLayers, kMeasured = 300;

struct Naive {
  float now = 0;
  std::deque<float> steps;  // newest first

  void step(bool skip) {
    if (!skip) steps.push_front(now);
    if (steps.size() > static_cast<std::size_t>(kAmaxSteps)) steps.pop_back();
    now = 0;
  }
  float largest() const { return steps.empty() ? 0 : *std::max_element(steps.begin(), steps.end()); }
};

class Fp8AmaxOn : public ::testing::TestWithParam<Device> {};
INSTANTIATE_TEST_SUITE_P(fp8_amax, Fp8AmaxOn, ::testing::ValuesIn(testing::devices()), testing::device_kind);

TEST_P(Fp8AmaxOn, remembers_the_largest_of_the_last_steps) {
  Pool pool(2);
  StepParams params;
  Stream s(GetParam(), pool, &params);
  OwnedTensor history(amax_history_spec(kTensors), GetParam()), host(amax_history_spec(kTensors));
  std::memset(host.tensor.data(), 0, static_cast<std::size_t>(host.tensor.bytes()));
  copy(s, history.tensor, host.tensor);
  std::vector<OwnedTensor> measured, there;
  for (std::int64_t i = 0; i < kTensors; ++i)
    measured.emplace_back(Spec{{1 + i * kMeasured % 700}, DType::f32}),
        there.emplace_back(measured.back().tensor.spec(), GetParam());

  Graph pass, update;
  const Var h = pass.constant("history", history.tensor);
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    Operand of[3];
    for (std::int64_t i = 0; i < 3; ++i) {
      const auto at = static_cast<std::size_t>(3 * layer + i);
      of[i] = read_operand(pass.constant("measured." + std::to_string(at), there[at].tensor));
    }
    record_fp8_amax(pass, h.operand(), 3 * layer, of[0], of[1], of[2]);
  }
  record_fp8_amax_step(update, update.constant("history", history.tensor));
  Instance observe(pass.finish(), nullptr, GetParam()), step(update.finish(), nullptr, GetParam());

  std::vector<Naive> naive(kTensors);
  const Rng rng{3, 1};
  std::uint64_t draws = 0;
  for (int i = 0; i < 40; ++i) {
    for (int micro = 0; micro < 1 + i % 3; ++micro) {
      for (std::size_t t = 0; t < measured.size(); ++t) {
        auto* v = measured[t].tensor.ptr<float>();
        for (std::int64_t k = 0; k < measured[t].tensor.size(); ++k)
          v[k] = rng.uniform(++draws) * static_cast<float>(t + 1);
        if (i == 7) v[0] = std::numeric_limits<float>::infinity();
        for (std::int64_t k = i == 7; k < measured[t].tensor.size(); ++k) naive[t].now = std::max(naive[t].now, v[k]);
        copy(s, there[t].tensor, measured[t].tensor);
      }
      observe.run(s);
      if (i % 2) observe.run(s);  // changes nothing
    }
    params.skip = i == 11 || i == 12;
    step.run(s);
    copy(s, host.tensor, history.tensor);
    s.synchronize();
    for (std::size_t t = 0; t < naive.size(); ++t) {
      naive[t].step(i == 11 || i == 12);
      const float* v = host.tensor.ptr<float>();
      ASSERT_EQ(v[t], 0) << "row 0 after step " << i;
      ASSERT_EQ(largest_of_steps(v, kTensors, static_cast<long long>(t)), naive[t].largest()) << t << " step " << i;
    }
  }
}

}  // namespace
}  // namespace hpcdl

#include "hpcdl/ops/swiglu/swiglu.spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "hpcdl/testing/every_isa.h"
#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

const auto spec = testing::op<Swiglu>({
    .cases = {{.in = {{1}, {1}}},
              {.in = {{3, 7}, {3, 7}}},
              {.in = {{5, 1023}, {5, 1023}}},
              {.in = {{2, 3, 64}, {2, 3, 64}}},
              {.in = {{4, 9}, testing::Input({4, 9}).fixed()}},
              {.in = {{3, 7}, {3, 7}}, .args = {Swiglu::Gate::gelu_tanh}},
              {.in = {{5, 1023}, {5, 1023}}, .args = {Swiglu::Gate::gelu_tanh}},
              {.in = {{0, 8}, {0, 8}}}},
    .contracts = contract::swiglu_contracts(),
    // Products of two inputs: an error of one is scaled by the other, which reaches 40 among the outliers.
    .condition = 40,
});

/// On a CPU the gate has a minimum, which must not affect results.
TEST(Swiglu, LargeArguments) {
  std::vector<float> gate = {-3.4e38f, -1e30f, -1e6f, -200, 200, 1e6f, 1e30f, 3.4e38f}, one(gate.size(), 1),
                     y(gate.size()), dgate(gate.size());
  const auto tensor = [](std::vector<float>& of) {
    return Tensor(of.data(), {{static_cast<std::int64_t>(of.size())}, DType::f32});
  };
  Pool pool(1);
  Stream s(pool);
  testing::for_each_isa([&] {
    for (const auto by : {Swiglu::Gate::silu, Swiglu::Gate::gelu_tanh}) {
      Swiglu::forward(s, tensor(y), tensor(gate), tensor(one), {by});
      Swiglu::backward(s, Grad(tensor(dgate), Write::overwrite), Grad(), tensor(gate), tensor(one), tensor(one), {by});
      for (std::size_t i = 0; i < gate.size(); ++i) {
        EXPECT_EQ(y[i], gate[i] < 0 ? 0 : gate[i]) << gate[i];
        EXPECT_NEAR(dgate[i], gate[i] < 0 ? 0 : 1, 1e-30) << gate[i];
      }
    }
  });
}

}  // namespace
}  // namespace hpcdl

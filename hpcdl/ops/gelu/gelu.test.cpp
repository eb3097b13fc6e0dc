#include "hpcdl/ops/gelu/gelu.spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "hpcdl/testing/every_isa.h"
#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using Form = Gelu::Form;

const auto spec = testing::op<Gelu>({
    .cases =
        {
            {.in = {{1}}},
            {.in = {{3, 7}}},
            {.in = {{5, 1023}}},
            {.in = {{2, 3, 64}}, .args = {Form::erf}},
            {.in = {{3, 7}}, .args = {Form::erf}},
            {.in = {{1, 20000}}},
            {.in = {{0, 8}}},
        },
    .contracts = contract::gelu_contracts(),
});

/// On a CPU gates have a minimum and squares overflow: neither may affect results.
TEST(Gelu, LargeArguments) {
  constexpr float kMost = std::numeric_limits<float>::max();
  std::vector<float> x = {-kMost, -3e38f, -1e30f, -1e20f, -1e15f, -1e6f, -200, 200, 1e6f, 1e15f, 1e20f, 1e30f, kMost},
                     ones(x.size(), 1), y(x.size()), dx(x.size());
  const Spec spec_of_x{{static_cast<std::int64_t>(x.size())}, DType::f32};
  const auto tensor = [&](std::vector<float>& of) { return Tensor(of.data(), spec_of_x); };
  Pool pool(1);
  Stream s(pool);
  testing::for_each_isa([&] {
    for (const Form form : {Form::tanh, Form::erf}) {
      Gelu::forward(s, tensor(y), tensor(x), {form});
      Gelu::backward(s, Grad(tensor(dx), Write::overwrite), tensor(x), tensor(ones), {form});
      for (std::size_t i = 0; i < x.size(); ++i) {
        EXPECT_EQ(y[i], x[i] < 0 ? 0 : x[i]) << x[i];
        EXPECT_NEAR(dx[i], x[i] < 0 ? 0 : 1, 1e-30) << x[i];
      }
    }
  });
}

}  // namespace
}  // namespace hpcdl

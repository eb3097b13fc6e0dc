#include "hpcdl/ops/linear/linear.spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "hpcdl/buffer.h"
#include "hpcdl/testing/every_isa.h"
#include "hpcdl/testing/op_spec.h"
#include "hpcdl/testing/random_tensor.h"

namespace hpcdl {
namespace {

using testing::for_each_isa;
using testing::Input;
using testing::random_tensor;

std::int64_t reduction(std::span<const Spec> in, const LinearArgs& a) {
  return std::max({in[0][-1], in[1][a.conv1d ? 1 : 0], in[0].size() / in[0][-1]});
}

// Products of two outliers (10 x 10) are 10 times the largest input, which the allowed error is relative to.
constexpr double kCondition = 10;

const auto plain = testing::op<Linear>({
    .cases =
        {
            {.in = {{1, 1}, {1, 1}, {1}, Input::none()}},
            {.in = {{5, 7}, {9, 7}, Input::none(), Input::none()}},
            {.in = {{2, 3, 17}, {33, 17}, {33}, {2, 3, 33}}},
            {.in = {{2, 3, 17}, {17, 33}, {33}, {2, 3, 33}}, .args = {.conv1d = true}},
            {.in = {{19, 64}, {50, 64}, Input::none(), {19, 50}}},
            {.in = {{0, 8}, {3, 8}, {3}, Input::none()}, .gradient = false},
        },
    .contracts = contract::linear_contracts(),
    .condition = kCondition,
});

const auto act = testing::op<ActivatedLinear>({
    .cases =
        {
            {.in = {{7, 9}, {20, 9}, {20}, Input::none()}, .args = {.activation = Activation::gelu_tanh}},
            {.in = {{7, 9}, {20, 9}, {20}, {7, 20}}, .args = {.activation = Activation::gelu_erf}},
            {.in = {{2, 5, 33}, {33, 50}, {50}, Input::none()},
             .args = {.activation = Activation::gelu_tanh, .conv1d = true}},
            {.in = {{3, 16}, {600, 16}, Input::none(), Input::none()}, .args = {.activation = Activation::gelu_erf}},
            {.in = {{7, 9}, {20, 9}, {20}, Input::none()}, .args = {.activation = Activation::relu}},
        },
    .contracts = contract::linear_contracts(),
    .reduction = reduction,
    .condition = kCondition,
});

// A float master weight with bf16 activations acts like its rounded copy; its gradient is not rounded.
TEST(LinearMixed, MasterWeightActsAsItsRoundedCopy) {
  Pool pool(2);
  Stream s(pool);
  const auto x = random_tensor({{5, 40}, DType::bf16}, 1), dy = random_tensor({{5, 21}, DType::bf16}, 3);
  const auto half = random_tensor({{21, 40}, DType::bf16}, 2), full = random_tensor({{21, 40}, DType::f32}, 2);
  for_each_isa([&] {
    const OwnedTensor y1({{5, 21}, DType::bf16}), y2({{5, 21}, DType::bf16}), dx1({{5, 40}, DType::bf16}),
        dx2({{5, 40}, DType::bf16});
    const OwnedTensor dw1({{21, 40}, DType::bf16}), dw2({{21, 40}, DType::f32});
    Linear::forward(s, y1.tensor, x.tensor, half.tensor, {}, {}, {});
    Linear::forward(s, y2.tensor, x.tensor, full.tensor, {}, {}, {});
    Linear::backward(s, {dx1.tensor, Write::overwrite}, {dw1.tensor, Write::overwrite}, {}, {}, x.tensor, half.tensor,
                     dy.tensor, {});
    Linear::backward(s, {dx2.tensor, Write::overwrite}, {dw2.tensor, Write::overwrite}, {}, {}, x.tensor, full.tensor,
                     dy.tensor, {});
    EXPECT_EQ(0, std::memcmp(y1.tensor.data(), y2.tensor.data(), static_cast<std::size_t>(y1.tensor.bytes())));
    EXPECT_EQ(0, std::memcmp(dx1.tensor.data(), dx2.tensor.data(), static_cast<std::size_t>(dx1.tensor.bytes())));
    for (std::int64_t i = 0; i < 21 * 40; ++i)
      ASSERT_EQ(dw1.tensor.ptr<bf16>()[i].bits, bf16(dw2.tensor.ptr<float>()[i]).bits);
  });
}

TEST(LinearChecks, SaysWhatIsWrong) {
  const Spec x{{2, 8}, DType::f32}, w{{4, 8}, DType::f32};
  EXPECT_EQ(Linear::infer(x, w, {}, {}, {}), (Spec{{2, 4}, DType::f32}));
  EXPECT_EQ(Linear::infer(x, w, {}, {}, {.out = DType::bf16}), (Spec{{2, 4}, DType::bf16}));
  EXPECT_THROW(Linear::infer(x, w, {}, {}, {.conv1d = true}), Error);
  EXPECT_THROW(Linear::infer(x, w, {{5}, DType::f32}, {}, {}), Error);
  EXPECT_THROW(Linear::infer(x, w, {}, {{2, 4}, DType::bf16}, {}), Error);
  EXPECT_THROW(Linear::infer({{2, 8}, DType::i32}, w, {}, {}, {}), Error);
  EXPECT_THROW(Linear::infer(x, {{8}, DType::f32}, {}, {}, {}), Error);
}

}  // namespace
}  // namespace hpcdl

#include "hpcdl/ops/block_linear/block_linear.spec.h"

#include <gtest/gtest.h>

#include <cstring>

#include "hpcdl/buffer.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/testing/every_isa.h"
#include "hpcdl/testing/op_spec.h"
#include "hpcdl/testing/random_tensor.h"

namespace hpcdl {
namespace {

using testing::Input;
using testing::random_tensor;

const auto spec = testing::op<BlockLinear>({
    .cases =
        {
            {.in = {{1, 1}, {1, 1, 1}, {1}, Input::none()}},
            {.in = {{5, 14}, {2, 9, 7}, Input::none(), Input::none()}},
            {.in = {{2, 3, 51}, {3, 34, 17}, {102}, {2, 3, 102}}, .args = {.groups = 2}},
            {.in = {{19, 64}, {4, 12, 16}, Input::none(), {19, 48}}, .args = {.groups = 4}},
            {.in = {{7, 20}, {5, 6, 4}, {30}, Input::none()}, .args = {.groups = 6}},
            {.in = {{200, 260}, {2, 140, 130}, {280}, Input::none()}, .args = {.groups = 7}, .gradient = false},
            {.in = {{0, 8}, {2, 3, 4}, {6}, Input::none()}, .gradient = false},
        },
    .contracts = contract::block_linear_contracts(),
    .condition = 10,  // as linear.test.cpp
    .gpu = false,
});

// A block-diagonal matrix, written out, is a matrix.
TEST(BlockLinear, EqualsTheWholeMatrix) {
  const std::int64_t blocks = 3, outputs = 8, inputs = 5, rows = 4, groups = 4;
  Pool pool(2);
  Stream s(pool);
  const auto x = random_tensor({{rows, blocks * inputs}, DType::f32}, 1),
             w = random_tensor({{blocks, outputs, inputs}, DType::f32}, 2);
  const OwnedTensor whole({{blocks * outputs, blocks * inputs}, DType::f32}), y({{rows, blocks * outputs}, DType::f32}),
      expected(y.tensor.spec());
  std::memset(whole.tensor.data(), 0, static_cast<std::size_t>(whole.tensor.bytes()));
  for (std::int64_t b = 0; b < blocks; ++b)
    for (std::int64_t o = 0; o < outputs; ++o)
      for (std::int64_t c = 0; c < inputs; ++c)
        whole.tensor
            .ptr<float>()[contract::block_column(b, o, blocks, outputs, groups) * blocks * inputs + b * inputs + c] =
            w.tensor.ptr<float>()[(b * outputs + o) * inputs + c];
  testing::for_each_isa([&] {
    BlockLinear::forward(s, y.tensor, x.tensor, w.tensor, {}, {}, {.groups = groups});
    Linear::forward(s, expected.tensor, x.tensor, whole.tensor, {}, {}, {});
    for (std::int64_t i = 0; i < y.tensor.size(); ++i)
      ASSERT_NEAR(y.tensor.ptr<float>()[i], expected.tensor.ptr<float>()[i], 1e-5);
  });
}

TEST(BlockLinearChecks, SaysWhatIsWrong) {
  const Spec x{{2, 8}, DType::f32}, w{{2, 6, 4}, DType::f32};
  EXPECT_EQ(BlockLinear::infer(x, w, {}, {}, {}), (Spec{{2, 12}, DType::f32}));
  EXPECT_THROW(BlockLinear::infer(x, w, {}, {}, {.groups = 4}), Error);
  EXPECT_THROW(BlockLinear::infer(x, w, {}, {}, {.groups = 0}), Error);
  EXPECT_THROW(BlockLinear::infer({{2, 9}, DType::f32}, w, {}, {}, {}), Error);
  EXPECT_THROW(BlockLinear::infer(x, {{12, 4}, DType::f32}, {}, {}, {}), Error);
  EXPECT_THROW(BlockLinear::infer(x, w, {{8}, DType::f32}, {}, {}), Error);
  EXPECT_THROW(BlockLinear::infer(x, w, {}, {{2, 12}, DType::bf16}, {}), Error);
}

}  // namespace
}  // namespace hpcdl

#include "hpcdl/ops/cast/cast.h"

#include <gtest/gtest.h>

#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Expected;
using testing::Values;

const auto spec = testing::op<Cast>({
    .cases =
        {
            {.in = {{1}}, .args = {DType::bf16}},
            {.in = {{3, 7}}, .args = {DType::bf16}},
            {.in = {{5, 1023}}, .args = {DType::f32}},
            {.in = {{1, 20000}}, .args = {DType::bf16}},
            {.in = {{0, 8}}, .args = {DType::bf16}},
        },
    .reference = [](std::span<Expected> out, std::span<const Values> in, const Cast::Args&) { out[0].value = in[0].v; },
});

TEST(cast, refuses_other_types) {
  EXPECT_THROW(Cast::infer({{4}, DType::i32}, {DType::f32}), Error);
  EXPECT_THROW(Cast::infer({{4}, DType::f32}, {DType::i8}), Error);
  EXPECT_EQ(Cast::infer({{4}, DType::f32}, {DType::f16}).dtype, DType::f16);
}

}  // namespace
}  // namespace hpcdl

#include "hpcdl/ops/expert_balance/expert_balance.spec.h"

#include <gtest/gtest.h>

#include "hpcdl/core/error.h"
#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Input;

Input f32(Shape shape) { return Input(shape).as(DType::f32); }

const auto load = testing::op<ExpertLoad>({
    .cases = {{.in = {f32({1, 1}), Input::indices({1, 1}, 1), Input::none(), Input::none()}},
              {.in = {f32({3, 8}), Input::indices({3, 2}, 8), Input::none(), Input::none()}},
              {.in = {f32({2, 35, 33}), Input::indices({2, 35, 3}, 33), f32({33}), f32({33}).fixed()}},
              {.in = {f32({131, 4}), Input::indices({131, 4}, 4), f32({4}), f32({4}).fixed()}},
              {.in = {f32({64, 512}), Input::indices({64, 8}, 512), Input::none(), Input::none()}},
              {.in = {f32({0, 4}), Input::indices({0, 2}, 4), f32({4}), f32({4}).fixed()}}},
    .reference = contract::expert_load_reference,
    .reduction = [](std::span<const Spec> in, const ExpertLoad::Args&) { return in[0].size() + 1; },
});

const auto balance = testing::op<ExpertBalance>({
    .cases = {{.in = {f32({1}), f32({1}).fixed(), Input::indices({1}, 5)}, .args = {.coefficient = 1}},
              {.in = {f32({8}), f32({16}).fixed(), Input::indices({2, 33}, 9, true)},
               .args = {.coefficient = 0.5f, .layers = 3, .ranks = 2}},
              {.in = {f32({512}), f32({512}).fixed(), Input::indices({700}, 9, true)},
               .args = {.coefficient = 0.01f, .layers = 2}}},
    .reference = contract::expert_balance_reference,
    .reduction = [](std::span<const Spec> in, const ExpertBalance::Args&) { return in[0].size() + 1; },
});

TEST(expert_balance, refuses_what_does_not_fit) {
  const Spec scores{{3, 8}, DType::f32}, experts{{3, 2}, DType::i32}, sums{{8}, DType::f32};
  EXPECT_NO_THROW(ExpertLoad::infer(scores, experts, sums, sums, {}));
  EXPECT_THROW(ExpertLoad::infer({{3, 8}, DType::bf16}, experts, {}, {}, {}), Error);
  EXPECT_THROW(ExpertLoad::infer({{4, 8}, DType::f32}, experts, {}, {}, {}), Error);
  EXPECT_THROW(ExpertLoad::infer(scores, experts, sums, {}, {}), Error);
  EXPECT_THROW(ExpertBalance::infer(sums, {{7}, DType::f32}, {{3}, DType::i32}, {}), Error);
  EXPECT_THROW(ExpertBalance::infer(sums, sums, {{3}, DType::i32}, {.layers = 0}), Error);
}

}  // namespace
}  // namespace hpcdl

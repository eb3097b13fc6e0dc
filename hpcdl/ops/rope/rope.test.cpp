#include "hpcdl/ops/rope/rope.spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/graph.h"
#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Input;

Input table(std::int64_t positions, std::int64_t d) { return Input({positions, d}).as(DType::f32).fixed(); }

const auto spec = testing::op<Rope>({
    .cases =
        {
            {.in = {{1, 1, 2}, table(1, 2), Input::none()}},
            {.in = {{2, 3, 64}, table(5, 64), Input::none()}},
            {.in = {{2, 3, 2 * 20}, table(3, 20), Input::indices({6}, 3)}, .args = {20}, .gradient = false},
            {.in = {{2, 5, 3 * 36}, table(5, 36), Input::none()}, .args = {36}},
            {.in = {{2, 5, 3, 36}, table(5, 36), Input::none()}},
            {.in = {{1, 70, 4 * 128}, table(80, 128), Input::none()}, .args = {128}},
            {.in = {{2, 5, 3 * 36}, table(5, 10), Input::none()}, .args = {36}},
            {.in = {{2, 5, 3, 37}, table(5, 36), Input::none()}},
            {.in = {{1, 6, 2 * 80}, table(9, 60), Input::indices({6}, 9)}, .args = {80}, .gradient = false},
            {.in = {{0, 4, 8}, table(4, 8), Input::none()}},
        },
    .contracts = contract::rope_contracts(),
    // The tables in this test are random, up to 40, not cosines: errors of x are scaled by them.
    .condition = 40,
});

TEST(rope, table_holds_the_angles_of_the_paper) {
  OwnedTensor t(Spec{{3000, 8}, DType::f32});
  rope_table(t.tensor, 500000);
  for (int p : {0, 1, 77, 2999})
    for (int i = 0; i < 4; ++i) {
      const double angle = p * std::pow(500000.0, -i / 4.0);
      EXPECT_FLOAT_EQ(t.tensor.ptr<float>()[p * 8 + i], static_cast<float>(std::cos(angle)));
      EXPECT_FLOAT_EQ(t.tensor.ptr<float>()[p * 8 + 4 + i], static_cast<float>(std::sin(angle)));
    }
}

TEST(rope, a_table_may_grow) {
  const RopeScaling scaling{.kind = RopeScaling::Kind::linear, .factor = 3};
  const OwnedTensor whole(Spec{{100, 8}, DType::f32}), grown(whole.tensor.spec());
  rope_table(whole.tensor, 10000, scaling);
  for (const auto& [begin, end] : {std::pair(0, 1), std::pair(1, 40), std::pair(40, 100)})
    rope_rows(grown.tensor, begin, end, 10000, scaling);
  for (int i = 0; i < 800; ++i) ASSERT_EQ(grown.tensor.ptr<float>()[i], whole.tensor.ptr<float>()[i]);
  EXPECT_THROW(rope_rows(grown.tensor, 50, 101, 10000, scaling), Error);
}

TEST(rope, rotates_each_token_by_the_angle_of_its_position) {
  OwnedTensor t(Spec{{16, 8}, DType::f32}), x(Spec{{1, 12, 8}, DType::f32}), whole(x.tensor.spec()),
      tail(Spec{{1, 5, 8}, DType::f32});
  rope_table(t.tensor, 10000);
  for (int i = 0; i < 96; ++i) x.tensor.ptr<float>()[i] = static_cast<float>(i % 7) - 3;
  Pool pool(1);
  Stream s(pool);
  Rope::forward(s, whole.tensor, x.tensor, t.tensor, {}, {});
  std::vector<std::int32_t> positions{9, 7, 11, 8, 10};
  const auto rotate = [&](std::span<const std::int32_t> tokens) {
    OwnedTensor rows(tail.tensor.spec());
    for (std::size_t r = 0; r < tokens.size(); ++r)
      std::memcpy(rows.tensor.ptr<float>() + 8 * r, x.tensor.ptr<float>() + 8 * tokens[r], 8 * sizeof(float));
    Rope::forward(s, tail.tensor, rows.tensor, t.tensor, View(positions.data(), {{5}, DType::i32}), {});
  };
  rotate(positions);
  for (std::size_t r = 0; r < positions.size(); ++r)
    for (std::size_t i = 0; i < 8; ++i)
      EXPECT_EQ(tail.tensor.ptr<float>()[8 * r + i],
                whole.tensor.ptr<float>()[8 * static_cast<std::size_t>(positions[r]) + i]);
  const auto valid = positions;
  for (const std::int32_t outside : {-1, 16}) {
    positions[2] = outside;
    EXPECT_THROW(rotate(valid), Error);
  }
}

TEST(rope, refuses_what_does_not_fit) {
  const Spec tab{{16, 8}, DType::f32};
  EXPECT_THROW(Rope::infer({{2, 4, 12}, DType::f32}, tab, {}, {8}), Error);
  EXPECT_THROW(Rope::infer({{2, 17, 8}, DType::f32}, tab, {}, {}), Error);
  EXPECT_THROW(Rope::infer({{4, 8}, DType::f32}, tab, {}, {}), Error);
  EXPECT_THROW(Rope::infer({{2, 4, 8}, DType::f32}, {{16, 10}, DType::f32}, {}, {}), Error);
  EXPECT_THROW(Rope::infer({{2, 4, 8}, DType::f32}, {{16, 7}, DType::f32}, {}, {}), Error);
  EXPECT_THROW(Rope::infer({{2, 4, 8}, DType::i32}, tab, {}, {}), Error);
}

}  // namespace
}  // namespace hpcdl

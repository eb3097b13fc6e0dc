#include "hpcdl/ops/chunk_attention/chunk_attention.spec.h"

#include <gtest/gtest.h>

#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

const auto spec = testing::op<ChunkAttention>({
    .cases = {{.in = {{2, 1, 4}, {1, 2, 4}, {1, 2, 4}}, .args = {.second = 1}},
              // The chunks of rank 0 and of rank 1, of two; then of rank 1 of three.
              {.in = {{4, 5, 2 * 8}, {2, 20, 2 * 8}, {2, 20, 2 * 8}}, .args = {.heads = 2, .second = 15}},
              {.in = {{4, 5, 2 * 8}, {2, 20, 2 * 8}, {2, 20, 2 * 8}}, .args = {.heads = 2, .first = 5, .second = 10}},
              {.in = {{2, 7, 7 * 10}, {1, 42, 10}, {1, 42, 10}},
               .args = {.heads = 7, .kv_heads = 1, .first = 7, .second = 28}},
              {.in = {{2, 17, 2 * 24}, {1, 68, 24}, {1, 68, 24}},
               .args = {.heads = 2, .kv_heads = 1, .first = 17, .second = 34, .scale = 0.3f}},
              {.in = {{2, 33, 3 * 20}, {1, 132, 3 * 20}, {1, 132, 3 * 20}},
               .args = {.heads = 3, .second = 99},
               .gradient = false},
              // The later chunk comes first; chunks that overlap; windows shorter and longer than a chunk; a cap.
              {.in = {{4, 3, 16}, {2, 12, 16}, {2, 12, 16}}, .args = {.heads = 1, .first = 9, .second = 0}},
              {.in = {{2, 6, 16}, {1, 12, 16}, {1, 12, 16}}, .args = {.first = 2, .second = 4}},
              {.in = {{2, 9, 2 * 8}, {1, 36, 8}, {1, 36, 8}},
               .args = {.heads = 2, .kv_heads = 1, .first = 9, .second = 18, .cap = 2, .window = 4}},
              {.in = {{2, 9, 2 * 8}, {1, 36, 8}, {1, 36, 8}},
               .args = {.heads = 2, .kv_heads = 1, .second = 27, .window = 20}},
              {.in = {{2, 128, 4 * 64}, {1, 512, 2 * 64}, {1, 512, 2 * 64}},
               .args = {.heads = 4, .kv_heads = 2, .first = 128, .second = 256},
               .gradient = false,
               .aligned = true},
              {.in = {{4, 70, 2 * 128}, {2, 280, 128}, {2, 280, 128}},
               .args = {.heads = 2, .kv_heads = 1, .second = 210},
               .gradient = false,
               .aligned = true},
              {.in = {{0, 4, 8}, {0, 16, 8}, {0, 16, 8}}, .args = {.first = 4, .second = 8}}},
    .contracts = contract::chunk_attention_contracts(),
    .condition = 10,  // as attention
    .operand_rounding = 1,
});

TEST(chunk_attention, refuses_what_does_not_fit) {
  const Spec q{{4, 5, 16}, DType::f32}, k{{2, 20, 16}, DType::f32};
  EXPECT_EQ(ChunkAttention::infer(q, k, k, {.heads = 2, .second = 15})[0], q);
  EXPECT_THROW(ChunkAttention::infer(q, k, k, {.heads = 2, .second = 16}), Error);
  EXPECT_THROW(ChunkAttention::infer(q, k, k, {.heads = 2, .first = -1, .second = 5}), Error);
  EXPECT_THROW(ChunkAttention::infer({{3, 5, 16}, DType::f32}, k, k, {.heads = 2, .second = 5}), Error);
  EXPECT_THROW(ChunkAttention::infer({{2, 5, 16}, DType::f32}, k, k, {.heads = 2, .second = 5}), Error);
  EXPECT_THROW(ChunkAttention::infer(q, k, k, {.heads = 3, .second = 5}), Error);
}

}  // namespace
}  // namespace hpcdl

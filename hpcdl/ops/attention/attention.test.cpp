#include "hpcdl/ops/attention/attention.spec.h"

#include <gtest/gtest.h>

#include <cmath>

#include "hpcdl/buffer.h"
#include "hpcdl/graph.h"
#include "hpcdl/ops/attention/decode_shape.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

const auto
    spec =
        testing::op<Attention>(
            {
                .cases =
                    {
                        {.in = {{1, 1, 4}, {1, 1, 4}, {1, 1, 4}}},
                        {.in = {{2, 5, 16}, {2, 5, 16}, {2, 5, 16}}, .args = {.heads = 2}},
                        {.in = {{1, 65, 2 * 20}, {1, 65, 2 * 20}, {1, 65, 2 * 20}},
                         .args = {.heads = 2, .scale = 0.3f}},
                        {.in = {{1, 67, 3, 64}, {1, 67, 3, 64}, {1, 67, 3, 64}}, .args = {.heads = 3}, .aligned = true},
                        {.in = {{1, 64, 2 * 64}, {1, 64, 64}, {1, 64, 64}},
                         .args = {.heads = 2, .kv_heads = 1, .causal = false},
                         .aligned = true},
                        {.in = {{1, 70, 128}, {1, 133, 128}, {1, 133, 128}}, .aligned = true},
                        {.in = {{2, 300, 4 * 64}, {2, 300, 2 * 64}, {2, 300, 2 * 64}},
                         .args = {.heads = 4, .kv_heads = 2},
                         .gradient = false,
                         .aligned = true},
                        {.in = {{1, 257, 3 * 128}, {1, 129, 128}, {1, 129, 128}},
                         .args = {.heads = 3, .kv_heads = 1, .causal = false},
                         .gradient = false,
                         .aligned = true},
                        {.in = {{2, 1, 8 * 128}, {2, 700, 2 * 128}, {2, 700, 2 * 128}},
                         .args = {.heads = 8, .kv_heads = 2},
                         .gradient = false,
                         .aligned = true},
                        {.in = {{1, 1, 3 * 64}, {1, 1000, 3 * 64}, {1, 1000, 3 * 64}},
                         .args = {.heads = 3},
                         .gradient = false,
                         .aligned = true},
                        {.in = {{2, 33, 6 * 16}, {2, 33, 2 * 16}, {2, 33, 2 * 16}},
                         .args = {.heads = 6, .kv_heads = 2}},
                        {.in = {{1, 70, 32}, {1, 133, 32}, {1, 133, 32}}, .args = {.heads = 2}, .aligned = true},
                        {.in = {{1, 70, 24}, {1, 133, 24}, {1, 133, 24}}, .args = {.heads = 2}},
                        {.in = {{1, 40, 32}, {1, 13, 32}, {1, 13, 32}}, .args = {.heads = 2, .causal = false}},
                        {.in = {{2, 1, 5 * 8}, {2, 150, 8}, {2, 150, 8}}, .args = {.heads = 5, .kv_heads = 1}},
                        {.in = {{1, 3, 2 * 256}, {1, 3, 2 * 256}, {1, 3, 2 * 256}}, .args = {.heads = 2}},
                        {.in = {{1, 2, 2}, {1, 2, 2}, {1, 2, 2}}, .args = {.heads = 2}},
                        // Windows that begin in, end in and are shorter than a block of keys; caps.
                        {.in = {{2, 9, 7 * 10}, {2, 9, 10}, {2, 9, 10}},
                         .args = {.heads = 7, .kv_heads = 1, .cap = 2, .window = 3}},
                        {.in = {{1, 70, 2 * 8}, {1, 133, 8}, {1, 133, 8}},
                         .args = {.heads = 2, .kv_heads = 1, .window = 7}},
                        {.in = {{1, 70, 24}, {1, 70, 24}, {1, 70, 24}}, .args = {.heads = 2, .window = 1}},
                        {.in = {{1, 33, 2 * 80}, {1, 33, 80}, {1, 33, 80}},
                         .args = {.heads = 2, .kv_heads = 1, .scale = 0.1f, .cap = 1}},
                        {.in = {{1, 300, 2 * 64}, {1, 333, 2 * 64}, {1, 333, 2 * 64}},
                         .args = {.heads = 2, .window = 100},
                         .gradient = false,
                         .aligned = true},
                        {.in = {{2, 200, 2 * 16}, {2, 200, 2 * 16}, {2, 200, 2 * 16}},
                         .args = {.heads = 2, .cap = 5, .window = 64},
                         .gradient = false},
                        {.in = {{2, 1, 8 * 64}, {2, 700, 2 * 64}, {2, 700, 2 * 64}},
                         .args = {.heads = 8, .kv_heads = 2, .cap = 3, .window = 77},
                         .gradient = false,
                         .aligned = true},
                        {.in = {{2, 1, 6 * 96}, {2, 400, 96}, {2, 400, 96}},
                         .args = {.heads = 6, .kv_heads = 1},
                         .gradient = false,
                         .aligned = true},
                        {.in = {{1, 1, 13 * 80}, {1, 300, 80}, {1, 300, 80}},
                         .args = {.heads = 13, .kv_heads = 1},
                         .gradient = false,
                         .aligned = true},
                        {.in = {{1, 1, 4 * 256}, {1, 700, 2 * 256}, {1, 700, 2 * 256}},
                         .args = {.heads = 4, .kv_heads = 2, .cap = 4, .window = 500},
                         .gradient = false,
                         .aligned = true},
                        {.in = {{1, 1, 3 * 20}, {1, 90, 20}, {1, 90, 20}},
                         .args = {.heads = 3, .kv_heads = 1, .window = 33}},
                        {.in = {{0, 4, 8}, {0, 4, 8}, {0, 4, 8}}},
                    },
                .contracts = contract::attention_contracts(),
                // A score of size s carries an error of eps * s into the exponent, and outliers lead to scores of tens.
                .condition = 10,
                // Probabilities are rounded before they multiply values: by half an ulp of sum(p |v|), which no value
                // exceeds.
                .operand_rounding = 1,
            });

struct Packed {
  static constexpr std::int64_t B = 2, T = 37, H = 4, G = 2, D = 16, C = (H + 2 * G) * D;
  OwnedTensor x{Spec{{B, T, C}, DType::f32}}, dy{Spec{{B, T, H* D}, DType::f32}};
  Packed() {
    for (std::int64_t i = 0; i < x.tensor.size(); ++i)
      x.tensor.ptr<float>()[i] = static_cast<float>(Rng{1}.normal(static_cast<std::uint64_t>(i)));
    for (std::int64_t i = 0; i < dy.tensor.size(); ++i)
      dy.tensor.ptr<float>()[i] = static_cast<float>(Rng{2}.normal(static_cast<std::uint64_t>(i)));
  }
};

// q, k and v as slices of one tensor, with the gradient packed in the same way, against three separate tensors.
TEST(attention, slices_of_a_packed_qkv) {
  Packed p;
  const auto run = [&](bool packed) {
    Pool pool(2);
    StepParams params;
    Stream s(pool, &params);
    Graph g({.eager = &s});
    const Var x = g.differentiable_input("qkv", p.x.tensor.spec());
    std::memcpy(g.eager_tensor(x).data(), p.x.tensor.data(), static_cast<std::size_t>(p.x.tensor.bytes()));
    Var in[3];
    const std::int64_t begin[] = {0, p.H * p.D, (p.H + p.G) * p.D}, count[] = {p.H * p.D, p.G * p.D, p.G * p.D};
    for (int i = 0; i < 3; ++i) {
      const Var part = g.slice(x, begin[i], count[i]);
      if (packed) {
        in[i] = part;
        continue;
      }
      in[i] = g.differentiable_input("part", part.spec());
      const Tensor from = g.eager_tensor(part), to = g.eager_tensor(in[i]);
      for (std::int64_t r = 0; r < to.rows(); ++r)
        std::memcpy(to.ptr<float>() + r * to.cols(), from.ptr<float>() + r * from.row_stride(),
                    static_cast<std::size_t>(to.cols()) * 4);
    }
    const Var y = attention(in[0], in[1], in[2], {.heads = p.H, .kv_heads = p.G});
    g.backward(y, g.constant("dy", p.dy.tensor));
    // The three gradients are written in place: only the op's own two records exist.
    EXPECT_EQ(g.position(), 2);
    std::vector<float> all;
    const auto take = [&](const Tensor& t) {
      for (std::int64_t r = 0; r < t.rows(); ++r)
        all.insert(all.end(), t.ptr<float>() + r * t.row_stride(), t.ptr<float>() + r * t.row_stride() + t.cols());
    };
    take(g.eager_tensor(y));
    for (const auto& v : in) take(g.eager_tensor(g.gradient(v)));
    return all;
  };
  EXPECT_EQ(run(true), run(false));
}

/// On 132 multiprocessors, whatever the number of texts: 17 of them with one share each would use a third.
TEST(attention, shares_of_long_caches_fill_a_gpu) {
  constexpr std::int64_t kKeys = 32768, kMultiprocessors = 132;
  constexpr int kHeads = 32, kKvHeads = 8;
  for (const int width : {64, 128, 256})
    for (std::int64_t texts = 1; texts <= 128; ++texts) {
      const Spec q{{texts, 1, kHeads * width}, DType::bf16}, k{{texts, kKeys, kKvHeads * width}, DType::bf16};
      const std::int64_t blocks = texts * kKvHeads * Attention::splits(q, k, {.heads = kHeads, .kv_heads = kKvHeads}),
                         at_once = kMultiprocessors * decode_blocks(width, 2, kHeads / kKvHeads),
                         rounds = (blocks + at_once - 1) / at_once;
      EXPECT_GE(blocks, 0.8 * static_cast<double>(rounds * at_once)) << texts << " texts, heads of " << width;
    }
}

/// Queries after the last of the keys, which see some of them through a window, and all keys before the queries.
const auto parts =
    testing::op<Attention>(
        {
            .cases = {{.in = {{1, 1, 4}, {1, 1, 4}, {1, 1, 4}}, .args = {.window = 2, .ahead = 1}},
                      {.in = {{2, 3, 2 * 8}, {2, 5, 8}, {2, 5, 8}},
                       .args = {.heads = 2, .kv_heads = 1, .window = 6, .ahead = 3}},
                      {.in = {{1, 33, 2 * 10}, {1, 40, 2 * 10}, {1, 40, 2 * 10}},
                       .args = {.heads = 2, .cap = 2, .window = 50, .ahead = 26}},
                      {.in = {{2, 7, 2 * 8}, {2, 7, 8}, {2, 7, 8}},
                       .args = {.heads = 2, .kv_heads = 1, .causal = false, .ahead = 0}},
                      {.in = {{1, 130, 2 * 64}, {1, 130, 64}, {1, 130, 64}},
                       .args = {.heads = 2, .kv_heads = 1, .window = 150, .ahead = 140},
                       .gradient = false}},
            .contracts =
                [] {
                  auto c = contract::attention_contracts();
                  for (auto& one : c) one.rows = contract::kNoRows;  // `spec` has tested them
                  return c;
                }(),
            .condition = 10,  // as above
            .operand_rounding = 1,
            .gpu = false,
        });

TEST(attention, refuses_what_does_not_fit) {
  const auto spec_of = [](Shape s) { return Spec{s, DType::f32}; };
  const Spec q = spec_of({2, 4, 24});
  EXPECT_THROW(Attention::infer(q, q, q, {.heads = 5}), Error);
  EXPECT_THROW(Attention::infer(q, q, q, {.heads = 4, .kv_heads = 3}), Error);
  EXPECT_THROW(Attention::infer(q, spec_of({2, 3, 24}), spec_of({2, 3, 24}), {.heads = 4}), Error);
  EXPECT_THROW(Attention::infer(q, q, spec_of({2, 4, 12}), {.heads = 4}), Error);
  EXPECT_THROW(Attention::infer(spec_of({2, 4, 600}), spec_of({2, 4, 600}), spec_of({2, 4, 600}), {.heads = 2}), Error);
  EXPECT_THROW(Attention::infer(spec_of({4, 24}), q, q, {.heads = 4}), Error);
  EXPECT_THROW(Attention::infer(q, q, q, {.heads = 4, .causal = false, .window = 2}), Error);
  EXPECT_THROW(Attention::infer(q, q, q, {.heads = 4, .window = -1}), Error);
  EXPECT_THROW(Attention::infer(q, q, q, {.heads = 4, .cap = -1}), Error);
  EXPECT_THROW(Attention::infer(q, q, q, {.heads = 4, .ahead = 1}), Error);
  EXPECT_THROW(Attention::infer(q, q, q, {.heads = 4, .window = 3, .ahead = 3}), Error);
}

}  // namespace
}  // namespace hpcdl

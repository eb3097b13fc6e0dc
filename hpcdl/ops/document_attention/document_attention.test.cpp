#include "hpcdl/ops/document_attention/document_attention.spec.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Input;

// Positions are drawn below `documents`: each 0 begins a document. With 1 every token is one.
Input positions(Shape shape, std::int64_t documents) { return Input::indices(shape, documents); }

const auto spec = testing::op<DocumentAttention>({
    .cases = {{.in = {{1, 1, 4}, {1, 1, 4}, {1, 1, 4}, positions({1, 1}, 2)}},
              {.in = {{2, 7, 2 * 8}, {2, 7, 2 * 8}, {2, 7, 2 * 8}, positions({2, 7}, 1)}, .args = {.heads = 2}},
              {.in = {{2, 13, 4 * 10}, {2, 13, 2 * 10}, {2, 13, 2 * 10}, positions({2, 13}, 3)},
               .args = {.heads = 4, .kv_heads = 2}},
              {.in = {{1, 29, 3 * 5}, {1, 29, 5}, {1, 29, 5}, positions({1, 29}, 9)},
               .args = {.heads = 3, .kv_heads = 1, .scale = 0.3f, .cap = 2, .window = 4}},
              {.in = {{3, 140, 2 * 64}, {3, 140, 64}, {3, 140, 64}, positions({3, 140}, 70)},
               .args = {.heads = 2, .kv_heads = 1},
               .gradient = false},
              {.in = {{2, 3, 16}, {2, 3, 16}, {2, 3, 16}, positions({2, 3}, 1)}, .args = {.heads = 2}},
              {.in = {{3, 1, 16}, {3, 1, 16}, {3, 1, 16}, positions({3, 1}, 4)}, .args = {.heads = 2}},
              {.in = {{0, 4, 8}, {0, 4, 8}, {0, 4, 8}, positions({0, 4}, 3)}}},
    .reference = contract::document_attention_reference,
    .reduction = [](std::span<const Spec> in, const DocumentAttention::Args&) { return in[0][1] + in[0][2]; },
    .condition = 10,  // as attention
    .operand_rounding = 1,
});

/// Forward and backward of a row, and of its documents as rows of their own.
TEST(document_attention, a_document_has_the_bits_that_it_has_alone) {
  constexpr std::int64_t kWidth = 2 * 12;
  const std::vector<std::int64_t> lengths{5, 1, 33, 18};
  const auto all = std::reduce(lengths.begin(), lengths.end());
  const Attention::Args args{.heads = 2};
  Pool pool(2);
  Stream s(pool);
  std::vector<OwnedTensor> in;  // q, k, v, dout
  for (std::uint64_t i = 0; i < 4; ++i) {
    auto& t = in.emplace_back(Spec{{1, all, kWidth}, DType::f32});
    const Rng rng{5, i};
    for (std::int64_t e = 0; e < t.tensor.size(); ++e)
      t.tensor.ptr<float>()[e] = static_cast<float>(rng.normal(static_cast<std::uint64_t>(e)));
  }
  OwnedTensor positions({{1, all}, DType::i32}), lse({{1, 2, all}, DType::f32});
  std::vector<OwnedTensor> found;  // out, dq, dk, dv
  for (int i = 0; i < 4; ++i) found.emplace_back(in[0].tensor.spec());
  std::int64_t at = 0;
  for (const auto n : lengths)
    for (std::int64_t t = 0; t < n; ++t) positions.tensor.ptr<std::int32_t>()[at++] = static_cast<std::int32_t>(t);
  const auto gradient = [](const OwnedTensor& t) { return Grad(t.tensor, Write::overwrite); };
  DocumentAttention::forward(s, found[0].tensor, lse.tensor, in[0].tensor, in[1].tensor, in[2].tensor, positions.tensor,
                             {}, {.heads = 2});
  DocumentAttention::backward(s, gradient(found[1]), gradient(found[2]), gradient(found[3]), in[0].tensor, in[1].tensor,
                              in[2].tensor, positions.tensor, found[0].tensor, lse.tensor, in[3].tensor, {}, {},
                              {.heads = 2});
  at = 0;
  for (const auto n : lengths) {
    const auto piece = [&](const OwnedTensor& t) {
      return Tensor(t.tensor.ptr<float>() + at * kWidth, {{1, n, kWidth}, DType::f32});
    };
    OwnedTensor own_lse({{1, 2, n}, DType::f32});
    std::vector<OwnedTensor> alone;
    for (int i = 0; i < 4; ++i) alone.emplace_back(Spec{{1, n, kWidth}, DType::f32});
    Attention::forward(s, alone[0].tensor, own_lse.tensor, piece(in[0]), piece(in[1]), piece(in[2]), {}, args);
    Attention::backward(s, gradient(alone[1]), gradient(alone[2]), gradient(alone[3]), piece(in[0]), piece(in[1]),
                        piece(in[2]), alone[0].tensor, own_lse.tensor, piece(in[3]), {}, args);
    for (std::size_t i = 0; i < 4; ++i)
      EXPECT_EQ(std::memcmp(piece(found[i]).data(), alone[i].tensor.data(), static_cast<std::size_t>(n * kWidth) * 4),
                0)
          << "tensor " << i << " of the document with " << n << " tokens";
    at += n;
  }
}

TEST(document_attention, refuses_what_does_not_fit) {
  const Spec q{{2, 5, 16}, DType::f32}, k{{2, 6, 16}, DType::f32}, positions{{2, 5}, DType::i32};
  EXPECT_EQ(DocumentAttention::infer(q, q, q, positions, {.heads = 2})[0], q);
  EXPECT_THROW(DocumentAttention::infer(q, k, k, positions, {.heads = 2}), Error);
  EXPECT_THROW(DocumentAttention::infer(q, q, q, {{2, 5}, DType::i64}, {.heads = 2}), Error);
  EXPECT_THROW(DocumentAttention::infer(q, q, q, {{2, 4}, DType::i32}, {.heads = 2}), Error);
  EXPECT_THROW(DocumentAttention::infer(q, q, q, positions, {.heads = 3}), Error);
}

}  // namespace
}  // namespace hpcdl

#include "hpcdl/ops/packed_attention/packed_attention.spec.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "hpcdl/testing/decoding.h"
#include "hpcdl/testing/every_isa.h"

namespace hpcdl {
namespace {

struct Batch {
  std::vector<std::int32_t> lengths;
  std::int64_t heads, kv_heads, width;
  std::int64_t most = 0;
  float scale = 0;

  std::vector<std::int32_t> starts() const {
    std::vector<std::int32_t> list{0};
    for (const auto n : lengths) list.push_back(list.back() + n);
    return list;
  }
  PackedAttention::Args args() const {
    return {.heads = static_cast<int>(heads), .kv_heads = static_cast<int>(kv_heads), .most = most, .scale = scale};
  }
};

struct Operands {
  OwnedTensor q, k, v, starts;
};

OwnedTensor starts_of(Stream& s, const Batch& b) {
  const auto list = b.starts();
  OwnedTensor there({{std::ssize(list)}, DType::i32}, s.device());
  copy(s, there.tensor, View(list.data(), there.tensor.spec()));
  s.synchronize();
  return there;
}

Operands operands(Stream& s, const Batch& b, DType type) {
  const std::int64_t tokens = b.starts().back();
  return {testing::random_on(s, {1, tokens, b.heads * b.width}, type, 1),
          testing::random_on(s, {1, tokens, b.kv_heads * b.width}, type, 2),
          testing::random_on(s, {1, tokens, b.kv_heads * b.width}, type, 3), starts_of(s, b)};
}

OwnedTensor attended(Stream& s, const Batch& b, const View& q, const View& k, const View& v, const View& starts) {
  OwnedTensor out(q.spec(), s.device()), here(q.spec());
  PackedAttention::forward(s, out.tensor, q, k, v, starts, b.args());
  copy(s, here.tensor, out.tensor);
  s.synchronize();
  return here;
}
OwnedTensor attended(Stream& s, const Batch& b, const Operands& x) {
  return attended(s, b, x.q.tensor, x.k.tensor, x.v.tensor, x.starts.tensor);
}

void compare_with_reference(Stream& s, const Batch& b, DType type) {
  SCOPED_TRACE(fmt::format("{} sequences, {} tokens, {}:{} heads of {} {}", b.lengths.size(), b.starts().back(),
                           b.heads, b.kv_heads, b.width, dtype_name(type)));
  Pool pool(1);
  Stream host(pool);
  const auto got = attended(s, b, operands(s, b, type));
  const auto here = operands(host, b, type);
  std::vector<contract::Values> in;
  for (const auto* x : {&here.q, &here.k, &here.v, &here.starts}) in.push_back(contract::values_of(x->tensor));
  contract::Expected want(got.tensor.spec());
  contract::packed_attention_reference({&want, 1}, in, b.args());
  const auto length = static_cast<double>(*std::ranges::max_element(b.lengths)) + static_cast<double>(b.width);
  for (std::int64_t i = 0; i < want.size(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    // Once for the result, once for the weights.
    const double allowed = 2 * allowed_error(type, want.stored[at], length, want.scale[at]);
    ASSERT_NEAR(element(got.tensor, i), want[i], allowed) << "element " << i;
  }
}

/// Lengths around those of blocks of queries and of keys, and sequences without a token.
const Batch kBatches[] = {
    {{1}, 1, 1, 8},
    {{7, 1, 0, 30}, 12, 12, 32},
    {{64, 65, 63}, 4, 2, 64, 65},
    {{0, 0, 33, 0}, 7, 1, 80},
    {{200, 95, 96, 97, 3}, 4, 4, 64},
    {{129, 17}, 6, 2, 128, 0, 0.25F},
    {{300, 40}, 2, 1, 256},
    {{12, 5}, 3, 3, 33},
    {{6, 20}, 2, 1, 1},
    {{513}, 3, 3, 20, 1000},
};
constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};

TEST(packed_attention, is_the_softmax_of_the_keys_of_its_sequence_on_a_cpu) {
  Pool pool(2);
  testing::for_each_isa([&] {
    for (const auto& b : kBatches)
      for (const DType type : kTypes) {
        Stream s(pool);
        compare_with_reference(s, b, type);
      }
  });
}

TEST(packed_attention, is_the_softmax_of_the_keys_of_its_sequence_on_a_gpu) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(2);
  Stream s(Device::cuda(0), pool);
  for (const auto& b : kBatches)
    for (const DType type : kTypes) compare_with_reference(s, b, type);
}

/// As attention() over the same sequence, bit for bit, whatever the sequences beside it and the number of threads.
TEST(packed_attention, sequences_change_no_bit_of_each_other_on_a_cpu) {
  testing::for_each_isa([&] {
    for (const bool invariant : {false, true})
      for (const DType type : {DType::f32, DType::bf16}) {
        const Batch& b = kBatches[4];
        Pool one(1), two(2);
        Stream s(one), other(two);
        for (auto* stream : {&s, &other}) stream->set_numerics({.row_invariant = invariant});
        const auto x = operands(s, b, type);
        const auto together = testing::on_host(s, attended(s, b, x).tensor);
        EXPECT_EQ(testing::on_host(s, attended(other, b, x).tensor), together);
        const auto cols = b.heads * b.width;
        for (std::size_t r = 0; r < b.lengths.size(); ++r) {
          const std::int64_t begin = b.starts()[r], tokens = b.lengths[r];
          const auto rows = [&](const OwnedTensor& t) {
            return View(t.tensor.ptr<std::byte>() + begin * cols * dtype_bytes(type), {{1, tokens, cols}, type});
          };
          OwnedTensor out({{1, tokens, cols}, type});
          Attention::forward(s, out.tensor, {}, rows(x.q), rows(x.k), rows(x.v), {},
                             {.heads = static_cast<int>(b.heads), .causal = false});
          const auto alone = testing::on_host(s, out.tensor);
          for (std::size_t i = 0; i < alone.size(); ++i)
            ASSERT_EQ(alone[i], together[static_cast<std::size_t>(begin * cols) + i])
                << "sequence " << r << ", element " << i;
        }
      }
  });
}

/// Operands that are columns of one packed matrix.
TEST(packed_attention, tokens_may_be_strided) {
  Pool pool(2);
  Stream s(pool);
  const Batch b{{40, 3, 70}, 4, 4, 16};
  const auto x = operands(s, b, DType::f32);
  const std::int64_t tokens = b.starts().back(), cols = b.heads * b.width;
  OwnedTensor all({{1, tokens, 3 * cols}, DType::f32});
  const auto part = [&](std::int64_t i) {
    return Tensor(all.tensor.ptr<float>() + i * cols, {{1, tokens, cols}, DType::f32}, {3 * cols * tokens, 3 * cols, 1},
                  {});
  };
  const OwnedTensor* from[] = {&x.q, &x.k, &x.v};
  for (std::int64_t i = 0; i < 3; ++i)
    for (std::int64_t t = 0; t < tokens; ++t)
      std::memcpy(part(i).ptr<float>() + t * 3 * cols, from[i]->tensor.ptr<float>() + t * cols,
                  static_cast<std::size_t>(cols) * 4);
  OwnedTensor out(x.q.tensor.spec());
  PackedAttention::forward(s, out.tensor, part(0), part(1), part(2), x.starts.tensor, b.args());
  EXPECT_EQ(testing::on_host(s, out.tensor), testing::on_host(s, attended(s, b, x).tensor));
}

TEST(packed_attention, refuses_what_does_not_fit) {
  const Spec q{{1, 5, 16}, DType::f32}, starts{{3}, DType::i32};
  const PackedAttention::Args a{.heads = 4};
  EXPECT_EQ(PackedAttention::infer(q, q, q, starts, a), q);
  EXPECT_THROW(PackedAttention::infer(q, q, q, {{1}, DType::i32}, a), Error);
  EXPECT_THROW(PackedAttention::infer(q, q, q, {{3}, DType::f32}, a), Error);
  EXPECT_THROW(PackedAttention::infer(q, q, q, starts, {.heads = 3}), Error);
  const Spec two{{2, 5, 16}, DType::f32}, longer{{1, 6, 16}, DType::f32};
  EXPECT_THROW(PackedAttention::infer(two, two, two, starts, a), Error);
  EXPECT_THROW(PackedAttention::infer(q, longer, longer, starts, a), Error);
  Pool one(1);
  Stream s(one);
  const Batch b{{2, 3}, 4, 4, 4};
  for (const auto& [index, value] : {std::pair{0, 1}, std::pair{2, 4}, std::pair{1, 6}, std::pair{1, -1}}) {
    auto x = operands(s, b, DType::f32);
    attended(s, b, x);
    x.starts.tensor.ptr<std::int32_t>()[index] = value;
    EXPECT_THROW(attended(s, b, x), Error) << index << " " << value;
  }
  Batch few = b;
  few.most = 2;
  EXPECT_THROW(attended(s, few, operands(s, b, DType::f32)), Error) << "a sequence has three tokens";
}

}  // namespace
}  // namespace hpcdl

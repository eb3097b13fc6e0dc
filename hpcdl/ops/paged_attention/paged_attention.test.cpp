#include "hpcdl/ops/paged_attention/paged_attention.spec.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/ops/attention/attention.h"
#include "hpcdl/testing/decoding.h"
#include "hpcdl/testing/every_isa.h"

namespace hpcdl {
namespace {

struct Row {
  std::int32_t queries, keys;
};

/// Sequences whose pages lie scattered in the pools. Slots without a key hold NaN.
struct Batch {
  std::vector<Row> rows;
  std::int64_t heads, kv_heads, width;
  int most = 0;
  int window = 0;
  float cap = 0;

  std::int64_t tokens() const {
    return std::accumulate(rows.begin(), rows.end(), std::int64_t{0},
                           [](auto n, const Row& r) { return n + r.queries; });
  }
  std::int64_t pages() const {
    std::int64_t most_pages = 1;
    for (const auto& r : rows) most_pages = std::max(most_pages, pages_for(r.keys));
    return most_pages;
  }
  std::int64_t sequences() const { return std::ssize(rows); }
  std::int64_t pool() const { return sequences() * pages() + 2; }
  std::int32_t page(std::int64_t r, std::int64_t i) const {
    return static_cast<std::int32_t>((7 * (r * pages() + i) + 3) % pool());
  }
};

struct Operands {
  OwnedTensor q, k, v, starts, lengths, pages;
};

OwnedTensor ints(Stream& s, Shape shape, const std::vector<std::int32_t>& values) {
  OwnedTensor there({shape, DType::i32}, s.device());
  copy(s, there.tensor, View(values.data(), there.tensor.spec()));
  s.synchronize();
  return there;
}

Operands operands(Stream& s, const Batch& b, DType type, DType stored) {
  std::vector<std::int32_t> starts{0}, lengths, pages;
  std::vector<bool> used(static_cast<std::size_t>(b.pool() * kPageTokens));
  for (std::int64_t r = 0; r < b.sequences(); ++r) {
    const auto& row = b.rows[static_cast<std::size_t>(r)];
    starts.push_back(starts.back() + row.queries), lengths.push_back(row.keys);
    for (std::int64_t i = 0; i < b.pages(); ++i)  // entries after the last page must not be read
      pages.push_back(i < pages_for(row.keys) ? b.page(r, i) : -1000000);
    for (std::int64_t t = 0; t < row.keys; ++t)
      used[static_cast<std::size_t>(b.page(r, t / kPageTokens) * kPageTokens + t % kPageTokens)] = true;
  }
  const auto filled = [&](std::uint64_t stream) {
    Pool one(1);
    Stream host(one);
    const auto random = testing::random_on(host, {b.pool() * kPageTokens, b.kv_heads, b.width}, DType::f32, stream);
    const OwnedTensor here(pool_of(b.pool(), b.kv_heads, b.width, stored));
    std::vector<double> x(static_cast<std::size_t>(b.width));
    for (std::int64_t slot = 0; slot < b.pool() * kPageTokens; ++slot)
      for (std::int64_t h = 0; h < b.kv_heads; ++h) {
        for (std::int64_t i = 0; i < b.width; ++i)
          x[static_cast<std::size_t>(i)] = used[static_cast<std::size_t>(slot)]
                                               ? element(random.tensor, (slot * b.kv_heads + h) * b.width + i)
                                               : __builtin_nan("");
        contract::store_row(here.tensor, slot, h, x);
      }
    OwnedTensor there(here.tensor.spec(), s.device());
    copy(s, there.tensor, here.tensor);
    s.synchronize();
    return there;
  };
  return {testing::random_on(s, {1, b.tokens(), b.heads * b.width}, type, 1),
          filled(2),
          filled(3),
          ints(s, {b.sequences() + 1}, starts),
          ints(s, {b.sequences()}, lengths),
          ints(s, {b.sequences(), b.pages()}, pages)};
}

PagedAttention::Args args_of(const Batch& b) {
  return {.heads = static_cast<int>(b.heads), .most_queries = b.most, .cap = b.cap, .window = b.window};
}

OwnedTensor attended(Stream& s, const Batch& b, const Operands& x) {
  const auto a = args_of(b);
  OwnedTensor out(x.q.tensor.spec(), s.device()),
      scratch(PagedAttention::scratch(x.q.tensor.spec(), x.k.tensor.spec(), {}, {}, {}, x.pages.tensor.spec(), a)[0],
              s.device());
  PagedAttention::forward(s, out.tensor, x.q.tensor, x.k.tensor, x.v.tensor, x.starts.tensor, x.lengths.tensor,
                          x.pages.tensor, scratch.tensor, a);
  OwnedTensor here(out.tensor.spec());
  copy(s, here.tensor, out.tensor);
  s.synchronize();
  return here;
}

void compare_with_reference(Stream& s, const Batch& b, DType type, DType stored) {
  SCOPED_TRACE(fmt::format("{} sequences, {} tokens, {}:{} heads of {}, {} in {}", b.sequences(), b.tokens(), b.heads,
                           b.kv_heads, b.width, dtype_name(type), dtype_name(stored)));
  Pool pool(1);
  Stream host(pool);
  const auto there = operands(s, b, type, stored);
  const auto copied = s.device().is_cuda() ? operands(host, b, type, stored) : Operands();
  const auto& here = s.device().is_cuda() ? copied : there;
  const auto got = attended(s, b, there);
  std::vector<contract::Values> in;
  in.push_back(contract::values_of(here.q.tensor));
  for (const auto* x : {&here.k, &here.v}) in.push_back(contract::pool_values(x->tensor));
  for (const auto* x : {&here.starts, &here.lengths, &here.pages}) in.push_back(contract::values_of(x->tensor));
  contract::Expected want(got.tensor.spec());
  contract::paged_attention_reference({&want, 1}, in, args_of(b));
  // On a GPU the products of f32 queries have two parts of 11 bits, or 24 bits; values between them are of the type.
  const DType rounded = type == stored ? type : type != DType::f32 && has_scales(stored) ? DType::bf16 : DType::f32;
  const auto length = static_cast<double>(b.pages() * kPageTokens + b.width);
  for (std::int64_t i = 0; i < want.size(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double allowed = allowed_error(type, want.stored[at], length, want.scale[at]) +
                           allowed_error(rounded, want.stored[at], length, want.scale[at]);
    ASSERT_NEAR(element(got.tensor, i), want[i], allowed) << "element " << i;
  }
}

const Batch kMixed{{{5, 97}, {1, 40}, {0, 0}, {70, 133}, {1, 65}}, 4, 2, 64};

/// One query of each sequence, and prompts; lengths around the ends of pages and of blocks of keys.
const Batch kBatches[] = {
    {{{1, 1}}, 1, 1, 8, 1},
    {{{1, 65}, {1, 1}, {1, 64}, {1, 33}}, 4, 2, 64, 1},
    {{{1, 200}, {1, 500}}, 7, 1, 128, 1},
    {{{1, 77}, {1, 128}}, 3, 3, 80, 1},
    {{{1, 1100}}, 8, 2, 64, 1},
    {{{1, 96}}, 2, 1, 256, 1},
    {{{1, 31}, {1, 70}}, 5, 5, 33, 1},
    {{{1, 5000}}, 4, 1, 64, 1},
    {{{1, 300}}, 16, 1, 64, 1},
    // Several rounds of tiles, in one pass or two, combined by clusters or by a second kernel.
    {{{1, 3000}, {1, 700}}, 12, 1, 96, 1},
    {{{1, 2500}, {1, 15}}, 20, 1, 128, 1},
    {{{1, 4200}, {1, 70}}, 5, 1, 80, 1},
    {{{1, 1300}}, 9, 1, 256, 1},
    {{{7, 7}}, 2, 2, 16},
    {{{64, 64}}, 4, 2, 64},
    {{{64, 200}}, 4, 1, 64},
    {{{33, 130}}, 6, 2, 128},
    kMixed,
    {{{3, 66}, {12, 12}}, 3, 1, 20},
    {{{9, 100}, {2, 64}}, 2, 1, 80},
    {{{17, 193}}, 2, 2, 256},
    {{{200, 333}, {128, 128}, {1, 90}, {130, 500}}, 4, 2, 64},
    {{{150, 400}, {129, 256}}, 4, 1, 128},
    {{{140, 190}}, 2, 2, 88},
    {{{1, 300}, {40, 200}, {1, 64}, {17, 17}}, 16, 2, 64},
    {{{100, 164}, {3, 130}}, 8, 1, 128},
    {{{50, 90}}, 12, 2, 64},
    {{{6, 70}, {1, 3}}, 2, 1, 1},
    // Windows shorter than a page, around a page, and longer than some sequences.
    {{{1, 65}, {1, 1}, {1, 64}, {1, 133}}, 4, 2, 64, 1, 7},
    {{{1, 200}, {1, 500}}, 7, 1, 128, 1, 65, 3},
    {{{1, 77}, {1, 128}}, 3, 3, 80, 1, 16, 2},
    {{{1, 5000}, {1, 100}}, 16, 1, 64, 1, 3000},
    {{{1, 300}}, 2, 1, 256, 1, 100, 1},
    {{{64, 200}, {7, 7}}, 7, 1, 80, 0, 7},
    {{{33, 330}, {1, 40}, {150, 150}}, 6, 2, 128, 0, 100, 2},
    {{{17, 193}}, 2, 2, 256, 0, 64, 1},
    {{{150, 600}, {129, 300}}, 2, 1, 64, 0, 300},
    {{{140, 900}}, 2, 2, 128, 0, 400},
};
constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};
constexpr DType kPoolTypes[] = {DType::f32, DType::bf16, DType::f16, DType::i8, DType::f8_e4m3};
/// Of queries and pools.
constexpr std::pair<DType, DType> kTypesOnCpu[] = {
    {DType::f32, DType::f32}, {DType::f32, DType::bf16}, {DType::f32, DType::f16}, {DType::bf16, DType::bf16},
    {DType::f16, DType::f16}, {DType::f32, DType::i8},   {DType::bf16, DType::i8}, {DType::f32, DType::f8_e4m3},
};

TEST(paged_attention, is_the_softmax_of_its_keys_on_a_cpu) {
  Pool pool(2);
  testing::for_each_isa([&] {
    for (const auto& b : kBatches)
      for (const auto& [type, stored] : kTypesOnCpu) {
        Stream s(pool);
        compare_with_reference(s, b, type, stored);
      }
  });
}

TEST(paged_attention, is_the_softmax_of_its_keys_on_a_gpu) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(2);
  Stream s(Device::cuda(0), pool);
  for (const auto& b : kBatches)
    for (const DType type : kTypes)
      for (const DType stored : kPoolTypes)
        if (stored == type || type == DType::f32 || has_scales(stored)) compare_with_reference(s, b, type, stored);
}

/// Decoding in passes of 8 or 16 heads that share keys, some of which are empty.
TEST(paged_attention, every_group_decodes_on_a_gpu) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(2);
  Stream s(Device::cuda(0), pool);
  for (const std::int64_t width : {48, 80, 96, 128, 256})
    for (std::int64_t group = 1; group <= 17; ++group)
      for (const auto& [type, stored] : {std::pair{DType::bf16, DType::bf16}, std::pair{DType::bf16, DType::i8},
                                         std::pair{DType::f16, DType::f16}, std::pair{DType::f16, DType::f8_e4m3}})
        compare_with_reference(s, {{{1, 130}, {1, 65}}, group, 1, width, 1}, type, stored);
}

/// Whatever other sequences there are, a result has the bits that it has alone.
TEST(paged_attention, sequences_change_no_bit_of_each_other_on_a_cpu) {
  Pool pool(2);
  testing::for_each_isa([&] {
    for (const auto& [invariant, stored] : {std::pair{false, DType::f32}, std::pair{true, DType::f32},
                                            std::pair{false, DType::i8}, std::pair{true, DType::i8}}) {
      Stream s(pool);
      s.set_numerics({.row_invariant = invariant});
      const Batch& all = kMixed;
      const auto x = operands(s, all, DType::f32, stored);
      const auto together = attended(s, all, x);
      std::int64_t begin = 0;
      for (std::int64_t r = 0; r < all.sequences(); ++r) {
        const auto& row = all.rows[static_cast<std::size_t>(r)];
        if (row.queries == 0) continue;
        Batch one = all;
        one.rows = {row};
        Operands y = operands(s, one, DType::f32, stored);
        const auto cols = all.heads * all.width;
        std::memcpy(y.q.tensor.data(), x.q.tensor.ptr<float>() + begin * cols,
                    static_cast<std::size_t>(y.q.tensor.bytes()));
        y.k = OwnedTensor(x.k.tensor.spec()), y.v = OwnedTensor(x.v.tensor.spec());
        copy(s, y.k.tensor, x.k.tensor), copy(s, y.v.tensor, x.v.tensor);
        y.pages = ints(s, {1, all.pages()},
                       {x.pages.tensor.ptr<std::int32_t>() + r * all.pages(),
                        x.pages.tensor.ptr<std::int32_t>() + (r + 1) * all.pages()});
        const auto alone = attended(s, one, y);
        for (std::int64_t i = 0; i < alone.tensor.size(); ++i)
          ASSERT_EQ(alone.tensor.ptr<float>()[i], together.tensor.ptr<float>()[begin * cols + i])
              << "sequence " << r << ", element " << i;
        begin += row.queries;
      }
    }
  });
}

/// In row-invariant programs a query has the bits of a sequence that ends with it.
TEST(paged_attention, queries_change_no_bit_of_each_other_on_a_gpu) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  Stream host(pool), s(Device::cuda(0), pool);
  s.set_numerics({.row_invariant = true});
  for (const auto& [type, stored] :
       {std::pair{DType::f32, DType::f32}, std::pair{DType::bf16, DType::bf16}, std::pair{DType::bf16, DType::i8}}) {
    const Batch& all = kMixed;
    compare_with_reference(s, all, type, stored);
    const auto x = operands(s, all, type, stored);
    const auto pages = operands(host, all, type, stored).pages;
    Batch single = all;
    single.rows.clear();
    std::vector<std::int32_t> table;
    for (std::int64_t r = 0; r < all.sequences(); ++r) {
      const auto& row = all.rows[static_cast<std::size_t>(r)];
      const auto* own = pages.tensor.ptr<std::int32_t>() + r * all.pages();
      for (std::int32_t i = row.queries - 1; i >= 0; --i) {
        single.rows.push_back({1, row.keys - i});
        table.insert(table.end(), own, own + all.pages());
      }
    }
    Operands y = operands(s, single, type, stored);
    for (auto [to, from] : {std::pair{&y.q, &x.q}, std::pair{&y.k, &x.k}, std::pair{&y.v, &x.v}}) {
      *to = OwnedTensor(from->tensor.spec(), s.device());
      copy(s, to->tensor, from->tensor);
    }
    y.pages = ints(s, {single.sequences(), all.pages()}, table);
    const auto together = attended(s, all, x), alone = attended(s, single, y);
    EXPECT_EQ(std::memcmp(together.tensor.data(), alone.tensor.data(), static_cast<std::size_t>(alone.tensor.bytes())),
              0)
        << dtype_name(type) << " in " << dtype_name(stored);
  }
}

/// As attention() over the same keys in one piece, bit for bit.
TEST(paged_attention, pages_change_no_bit_on_a_cpu) {
  Pool pool(2);
  testing::for_each_isa([&] {
    for (const DType type : {DType::f32, DType::bf16})
      for (const auto& [queries, window] :
           std::vector<std::pair<std::int64_t, int>>{{1, 0}, {3, 0}, {64, 0}, {150, 0}, {1, 40}, {64, 7}, {150, 70}}) {
        const std::int64_t keys = 150, heads = 4, kv = 2, width = 64;
        const Batch b{
            {{static_cast<std::int32_t>(queries), static_cast<std::int32_t>(keys)}}, heads, kv, width, 0, window};
        Stream s(pool);
        const auto x = operands(s, b, type, type);
        OwnedTensor k({{1, keys, kv * width}, type}), v(k.tensor.spec()), out(x.q.tensor.spec());
        const auto bytes = static_cast<std::size_t>(width * dtype_bytes(type));
        for (std::int64_t t = 0; t < keys; ++t)
          for (std::int64_t h = 0; h < kv; ++h) {
            const auto from = ((b.page(0, t / kPageTokens) * kv + h) * kPageTokens + t % kPageTokens) *
                              static_cast<std::int64_t>(bytes),
                       to = (t * kv + h) * static_cast<std::int64_t>(bytes);
            std::memcpy(k.tensor.ptr<std::byte>() + to, x.k.tensor.ptr<std::byte>() + from, bytes);
            std::memcpy(v.tensor.ptr<std::byte>() + to, x.v.tensor.ptr<std::byte>() + from, bytes);
          }
        Attention::forward(s, out.tensor, {}, x.q.tensor, k.tensor, v.tensor, {},
                           {.heads = static_cast<int>(heads), .kv_heads = static_cast<int>(kv), .window = window});
        EXPECT_EQ(testing::on_host(s, attended(s, b, x).tensor), testing::on_host(s, out.tensor))
            << queries << " queries of " << dtype_name(type);
      }
  });
}

TEST(paged_attention, refuses_what_does_not_fit) {
  const auto i32 = [](Shape s) { return Spec{std::move(s), DType::i32}; };
  const Spec q{{1, 5, 16}, DType::f32}, pool{{3, 2, kPageTokens, 4}, DType::f32};
  const PagedAttention::Args a{.heads = 4};
  EXPECT_EQ(PagedAttention::infer(q, pool, pool, i32({3}), i32({2}), i32({2, 2}), a), q);
  EXPECT_THROW(PagedAttention::infer(q, pool, pool, i32({3}), i32({2}), i32({1, 2}), a), Error);
  const Spec codes = pool_of(3, 2, 4, DType::i8);
  EXPECT_EQ(PagedAttention::infer(q, codes, codes, i32({3}), i32({2}), i32({2, 2}), a), q);
  EXPECT_THROW(PagedAttention::infer(q, codes, pool, i32({3}), i32({2}), i32({2, 2}), a), Error);
  EXPECT_THROW(PagedAttention::infer(q, pool, pool, i32({2}), i32({2}), i32({2, 2}), a), Error);
  EXPECT_THROW(PagedAttention::infer(q, pool, pool, i32({3}), i32({2}), i32({2, 2}), {.heads = 3}), Error);
  EXPECT_THROW(PagedAttention::infer(Spec({{2, 5, 16}, DType::f32}), pool, pool, i32({3}), i32({2}), i32({2, 2}), a),
               Error);
  Pool one(1);
  Stream s(one);
  const Batch b{{{2, 70}, {3, 3}}, 4, 2, 4};
  struct Change {
    const char* what;
    int operand, index, value;
  };
  for (const auto& [what, operand, index, value] :
       {Change{"starts do not end at T", 0, 2, 4}, Change{"starts fall", 0, 1, 6},
        Change{"fewer keys than queries", 1, 1, 2}, Change{"more keys than pages", 1, 0, 129},
        Change{"no such page", 2, 1, 100}, Change{"no such page", 2, 0, -1}}) {
    auto x = operands(s, b, DType::f32, DType::f32);
    attended(s, b, x);
    Tensor& t = operand == 0 ? x.starts.tensor : operand == 1 ? x.lengths.tensor : x.pages.tensor;
    t.ptr<std::int32_t>()[index] = value;
    EXPECT_THROW(attended(s, b, x), Error) << what;
  }
  Batch few = b;
  few.most = 2;
  EXPECT_THROW(attended(s, few, operands(s, b, DType::f32, DType::f32)), Error) << "a sequence has three queries";
}

}  // namespace
}  // namespace hpcdl

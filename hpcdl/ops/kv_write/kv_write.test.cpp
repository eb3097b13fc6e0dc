#include "hpcdl/ops/kv_write/kv_write.spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "hpcdl/testing/decoding.h"
#include "hpcdl/testing/every_isa.h"

namespace hpcdl {
namespace {

struct Sizes {
  std::int64_t batch, tokens, heads, width;
};

/// Writes rows of which some have no slot, or are 0; every other byte of the pools must stay as it is.
void write_and_check(Stream& s, const Sizes& z, DType from, DType to) {
  constexpr std::int64_t kPages = 3;
  const auto rows = z.batch * z.tokens, cols = z.heads * z.width;
  const Spec pool = pool_of(kPages, z.heads, z.width, to);
  OwnedTensor before(pool), k_pool(pool, s.device()), v_pool(pool, s.device());
  for (std::int64_t i = 0; i < before.tensor.size(); ++i) set_element(before.tensor, i, 7);
  copy(s, k_pool.tensor, before.tensor), copy(s, v_pool.tensor, before.tensor);
  // Keys and values are columns of one tensor, as after a joined projection.
  const auto both = testing::random_on(s, {z.batch, z.tokens, 2 * cols + 1}, from, 3);
  const auto part = [&](std::int64_t begin) {
    const View all = both.tensor;
    return View(all.ptr<std::byte>() + begin * dtype_bytes(from), {{z.batch, z.tokens, cols}, from}, all.strides(),
                s.device());
  };
  std::vector<std::int64_t> slots;
  for (std::int64_t r = 0; r < rows; ++r) slots.push_back(r % 5 == 4 ? -1 : kPages * kPageTokens - 1 - 11 * r);
  const OwnedTensor at({{rows}, DType::i64}, s.device());
  copy(s, at.tensor, View(slots.data(), at.tensor.spec()));
  KvWrite::write(s, k_pool.tensor, v_pool.tensor, part(0), part(cols), at.tensor);
  const auto x = testing::on_host(s, both.tensor);
  for (const std::int64_t which : {0, 1}) {
    OwnedTensor got(pool), want(pool);
    copy(s, got.tensor, which == 0 ? k_pool.tensor : v_pool.tensor);
    copy(s, want.tensor, before.tensor);
    s.synchronize();
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t h = 0; h < z.heads && slots[static_cast<std::size_t>(r)] >= 0; ++h) {
        const auto begin = x.begin() + r * (2 * cols + 1) + which * cols + h * z.width;
        const std::vector<double> row(begin, begin + z.width);
        contract::store_row(want.tensor, slots[static_cast<std::size_t>(r)], h, row);
      }
    EXPECT_EQ(std::memcmp(got.tensor.data(), want.tensor.data(), static_cast<std::size_t>(pool.bytes())), 0)
        << (which == 0 ? "keys" : "values") << " of " << dtype_name(from) << " in " << dtype_name(to);
  }
}

constexpr Sizes kSizes[] = {{1, 1, 1, 1}, {1, 1, 4, 64}, {2, 7, 3, 20}, {1, 17, 2, 129}, {3, 1, 8, 128}};
constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};
constexpr DType kPoolTypes[] = {DType::f32, DType::bf16, DType::f16, DType::i8, DType::f8_e4m3};

TEST(kv_write, stores_rows_in_their_slots_on_a_cpu) {
  Pool pool(2);
  testing::for_each_isa([&] {
    for (const auto& z : kSizes)
      for (const DType from : kTypes)
        for (const DType to : kPoolTypes) {
          Stream s(pool);
          write_and_check(s, z, from, to);
        }
  });
}

TEST(kv_write, stores_rows_in_their_slots_on_a_gpu) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(2);
  Stream s(Device::cuda(0), pool);
  for (const auto& z : kSizes)
    for (const DType from : kTypes)
      for (const DType to : kPoolTypes) write_and_check(s, z, from, to);
}

/// A row's largest element has the largest code, and no element is further from its own than half a step.
TEST(kv_write, codes_are_the_nearest) {
  Pool pool(2);
  testing::for_each_isa([&] {
    for (const DType to : {DType::i8, DType::f8_e4m3})
      for (const double size : {1.0, 0x1p-90, 1e30, 1e-44, 0.0}) {
        Stream s(pool);
        const auto x = testing::random_on(s, {1, 1, 100}, DType::f32, 5, size);
        const OwnedTensor keys(pool_of(1, 1, 100, to)), values(keys.tensor.spec()), slot({{1}, DType::i64});
        set_element(slot.tensor, 0, 0);
        KvWrite::write(s, keys.tensor, values.tensor, x.tensor, x.tensor, slot.tensor);
        const auto got = contract::pool_values(keys.tensor);
        double largest = 0;
        for (std::int64_t i = 0; i < 100; ++i) largest = std::max(largest, std::fabs(element(x.tensor, i)));
        // An f8 has 3 bits after the first, or steps of 2^-9 below 2^-6.
        const double floor = to == DType::i8 ? largest / 254 : largest / 448 / 1024,
                     share = to == DType::i8 ? 0 : 0x1p-4;
        for (std::int64_t i = 0; i < 100; ++i) {
          const double v = element(x.tensor, i), allowed = std::max(floor, share * std::fabs(v)) * 1.0001 + 0x1p-108;
          ASSERT_NEAR(got[i], v, allowed) << dtype_name(to) << " of size " << size << ", element " << i;
        }
      }
  });
}

/// An element that is not finite spoils its row, and no other.
TEST(kv_write, codes_keep_what_is_not_finite) {
  Pool pool(1);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (const DType to : {DType::i8, DType::f8_e4m3}) {
      Stream s(pool);
      const auto x = testing::random_on(s, {1, 2, 8}, DType::f32, 6);
      set_element(x.tensor, 3, static_cast<double>(bad));
      const OwnedTensor keys(pool_of(1, 1, 8, to)), values(keys.tensor.spec()), slots({{2}, DType::i64});
      set_element(slots.tensor, 0, 4), set_element(slots.tensor, 1, 5);
      KvWrite::write(s, keys.tensor, values.tensor, x.tensor, x.tensor, slots.tensor);
      const auto got = contract::pool_values(keys.tensor);
      for (std::int64_t i = 0; i < 8; ++i) {
        EXPECT_TRUE(std::isnan(got[4 * 8 + i])) << dtype_name(to);
        EXPECT_TRUE(std::isfinite(got[5 * 8 + i])) << dtype_name(to);
      }
    }
}

TEST(kv_write, refuses_what_does_not_fit) {
  const Spec pool{{3, 2, kPageTokens, 8}, DType::f32}, x{{1, 5, 16}, DType::f32}, slots{{5}, DType::i64};
  KvWrite::check(pool, x, slots);
  EXPECT_THROW(KvWrite::check(pool, Spec({{1, 5, 8}, DType::f32}), slots), Error);
  EXPECT_THROW(KvWrite::check(pool, x, Spec({{4}, DType::i64})), Error);
  EXPECT_THROW(KvWrite::check(pool, x, Spec({{5}, DType::i32})), Error);
  EXPECT_THROW(KvWrite::check(Spec({{3, 2, 32, 8}, DType::f32}), x, slots), Error);
  KvWrite::check(pool_of(3, 2, 8, DType::i8), x, slots);
  EXPECT_THROW(KvWrite::check(Spec({{3, 2, kPageTokens, 8}, DType::i8}), x, slots), Error) << "without scales";
  EXPECT_THROW(KvWrite::check(Spec({{3, 2, kPageTokens, kScaleCodes}, DType::i8}), x, slots), Error);
  EXPECT_THROW(KvWrite::check(Spec({{3, 2, kPageTokens, 8}, DType::u8}), x, slots), Error);
  const OwnedTensor memory(pool);
  for (const std::int64_t outside : {std::int64_t{-2}, 3 * kPageTokens})
    EXPECT_THROW(KvWrite::require_slots(View(&outside, {{1}, DType::i64}), memory.tensor), Error);
}

}  // namespace
}  // namespace hpcdl

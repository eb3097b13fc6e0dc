#include "hpcdl/ops/kv_write/kv_write.h"

#include <gtest/gtest.h>

#include <vector>

#include "hpcdl/testing/decoding.h"
#include "hpcdl/testing/every_isa.h"

namespace hpcdl {
namespace {

struct Sizes {
  std::int64_t batch, tokens, heads, width;
};

/// Writes rows of which some have no slot; every other element of the pools must still be 7.
void write_and_check(Stream& s, const Sizes& z, DType from, DType to) {
  constexpr std::int64_t kPages = 3;
  const auto rows = z.batch * z.tokens, cols = z.heads * z.width;
  const Spec pool{{kPages, z.heads, kPageTokens, z.width}, to};
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
    const auto got = testing::on_host(s, which == 0 ? k_pool.tensor : v_pool.tensor);
    std::vector<float> want(got.size(), 7);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t i = 0; i < cols && slots[static_cast<std::size_t>(r)] >= 0; ++i) {
        const auto slot = slots[static_cast<std::size_t>(r)], page = slot / kPageTokens, h = i / z.width;
        const auto row = (page * z.heads + h) * kPageTokens + slot % kPageTokens;
        OwnedTensor rounded({{1}, to});
        set_element(rounded.tensor, 0, x[static_cast<std::size_t>(r * (2 * cols + 1) + which * cols + i)]);
        want[static_cast<std::size_t>(row * z.width + i % z.width)] = static_cast<float>(element(rounded.tensor, 0));
      }
    EXPECT_EQ(got, want) << (which == 0 ? "keys" : "values") << " of " << dtype_name(from) << " in " << dtype_name(to);
  }
}

constexpr Sizes kSizes[] = {{1, 1, 1, 1}, {1, 1, 4, 64}, {2, 7, 3, 20}, {1, 17, 2, 129}, {3, 1, 8, 128}};
constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};

TEST(kv_write, stores_rows_in_their_slots_on_a_cpu) {
  Pool pool(2);
  testing::for_each_isa([&] {
    for (const auto& z : kSizes)
      for (const DType from : kTypes)
        for (const DType to : kTypes) {
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
      for (const DType to : kTypes) write_and_check(s, z, from, to);
}

TEST(kv_write, refuses_what_does_not_fit) {
  const Spec pool{{3, 2, kPageTokens, 8}, DType::f32}, x{{1, 5, 16}, DType::f32}, slots{{5}, DType::i64};
  KvWrite::check(pool, x, slots);
  EXPECT_THROW(KvWrite::check(pool, Spec({{1, 5, 8}, DType::f32}), slots), Error);
  EXPECT_THROW(KvWrite::check(pool, x, Spec({{4}, DType::i64})), Error);
  EXPECT_THROW(KvWrite::check(pool, x, Spec({{5}, DType::i32})), Error);
  EXPECT_THROW(KvWrite::check(Spec({{3, 2, 32, 8}, DType::f32}), x, slots), Error);
  const OwnedTensor memory(pool);
  for (const std::int64_t outside : {std::int64_t{-2}, 3 * kPageTokens})
    EXPECT_THROW(KvWrite::require_slots(View(&outside, {{1}, DType::i64}), memory.tensor), Error);
}

}  // namespace
}  // namespace hpcdl

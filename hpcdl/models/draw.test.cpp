#include "hpcdl/models/draw.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "hpcdl/pool.h"
#include "hpcdl/rng.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl::models {
namespace {

/// Runs on every instruction set that this CPU has.
class Draw : public testing::TestWithParam<simd::IsaKind> {
 protected:
  void SetUp() override {
    before_ = simd::active_isa();
    if (!simd::set_active_isa(GetParam())) GTEST_SKIP() << "this CPU lacks this instruction set";
  }
  void TearDown() override { simd::set_active_isa(before_); }
  simd::IsaKind before_{};
};

/// The number of draws that differ from sequential ones, plus writes outside of the tensor.
int wrong_bits(Pool& pool, std::int64_t n, const Rng& rng, std::uint64_t first, float scale) {
  constexpr float kBeside = 77;
  std::vector<float> got(static_cast<std::size_t>(n) + 1, kBeside);
  draw_normal(pool, got.data(), n, rng, first, scale);
  int wrong = got.back() != kBeside;
  for (std::int64_t i = 0; i < n; ++i) {
    const float want = static_cast<float>(rng.normal(first + static_cast<std::uint64_t>(i))) * scale;
    wrong += std::bit_cast<std::uint32_t>(got[static_cast<std::size_t>(i)]) != std::bit_cast<std::uint32_t>(want);
  }
  return wrong;
}

TEST_P(Draw, has_the_bits_of_one_draw_after_the_other) {
  Pool pool(3);
  EXPECT_EQ(wrong_bits(pool, 4'000'000, {1, 1}, 0, 0.02f), 0);
  EXPECT_EQ(wrong_bits(pool, 500'000, {~std::uint64_t{0}, std::uint64_t{5} << 40}, 0, 1.0f), 0);
  EXPECT_EQ(wrong_bits(pool, 200'000, {7, 3}, (std::uint64_t{1} << 32) - 100'003, 0.1f), 0) << "over 2^32";
  EXPECT_EQ(wrong_bits(pool, 5'000, {7, 3}, std::uint64_t{1} << 60, 0.1f), 0);
}

TEST_P(Draw, of_any_size_and_beginning) {
  Pool one(1), four(4);
  for (std::int64_t n = 0; n < 70; ++n) EXPECT_EQ(wrong_bits(one, n, {9, 2}, static_cast<std::uint64_t>(3 * n), 1), 0);
  for (const std::int64_t n : {1023, 1024, 1025, 16383, 16384, 16385, 32769, 65543})
    for (const std::uint64_t first : {0, 1, 13}) EXPECT_EQ(wrong_bits(four, n, {4, 8}, first, 0.5f), 0) << n;
}

TEST_P(Draw, uniform_values_too) {
  Pool pool(4);
  const Rng rng{3, 5};
  std::vector<float> got(100'001);
  draw_uniform(pool, got.data(), 100'001, rng, 2, 0.25f);
  int wrong = 0;
  for (std::size_t i = 0; i < got.size(); ++i) wrong += got[i] != (2 * rng.uniform(2 + i) - 1) * 0.25f;
  EXPECT_EQ(wrong, 0);
}

INSTANTIATE_TEST_SUITE_P(isas, Draw, testing::ValuesIn(simd::kIsaKinds),
                         [](const auto& i) { return std::string(simd::isa_name(i.param)); });

}  // namespace
}  // namespace hpcdl::models

#include "hpcdl/buffer.h"

#include <gtest/gtest.h>

#include "hpcdl/core/red_zone.h"

namespace hpcdl {
namespace {

class BufferEnd : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(BufferEnd, is_known_to_an_address_sanitizer) {
#ifndef HPCDL_RED_ZONES
  GTEST_SKIP() << "built without an address sanitizer";
#else
  const Buffer b(GetParam());
  EXPECT_EQ(b.data()[GetParam() - 1], std::byte{0});
  const volatile std::byte* beyond = b.data() + GetParam();
  EXPECT_DEATH(static_cast<void>(*beyond), "use-after-poison");
#endif
}

// Less than eight bytes, a cache line, a mapping that is rounded up to pages of 2 MiB.
INSTANTIATE_TEST_SUITE_P(Sizes, BufferEnd, ::testing::Values(3, 64, (std::int64_t{2} << 20) + 12));

TEST(buffer, addresses_of_a_mapping_can_be_used_again) {
  constexpr std::int64_t kSmaller = (std::int64_t{2} << 20) + 12, kLarger = std::int64_t{4} << 20;
  { const Buffer b(kSmaller); }
  const Buffer b(kLarger);  // usually at the address of the first
  for (std::int64_t i = 0; i < kLarger; i += 4096) EXPECT_EQ(b.data()[i], std::byte{0});
}

}  // namespace
}  // namespace hpcdl

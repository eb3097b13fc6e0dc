#include "hpcdl/io/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace hpcdl::io {
namespace {

TEST(crc32c, known_values) {  // RFC 3720 B.4, and the customary check value
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
  EXPECT_EQ(crc32c(""), 0u);
}

TEST(crc32c, instruction_and_table_agree_at_every_length_and_offset) {
  if (!has_sse42()) GTEST_SKIP() << "this CPU lacks SSE4.2";
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 37 + 11);
  for (std::size_t at = 0; at < 9; ++at)
    for (std::size_t n = 0; n + at < text.size(); n += 1 + n / 16) {
      const auto piece = std::as_bytes(std::span(text)).subspan(at, n);
      ASSERT_EQ(crc32c_sse42(piece, 7), crc32c_table(piece, 7)) << at << "+" << n;
    }
}

TEST(crc32c, pieces_chain) {
  const std::string a = "the quick brown ", b = "fox";
  EXPECT_EQ(crc32c(b, crc32c(a)), crc32c(a + b));
}

}  // namespace
}  // namespace hpcdl::io

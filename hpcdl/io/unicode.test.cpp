#include "hpcdl/io/unicode.h"

#include <gtest/gtest.h>

namespace hpcdl::io {
namespace {

TEST(unicode, every_code_point_survives) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    ASSERT_EQ(find_invalid_utf8(text), std::string::npos) << std::hex << static_cast<unsigned>(c);
    std::size_t at = 0;
    ASSERT_EQ(next_code_point(text, at), c);
    ASSERT_EQ(at, text.size());
    for (std::size_t cut = 0; cut < text.size(); ++cut) ASSERT_EQ(complete_utf8_prefix(text.substr(0, cut)), 0u);
  }
}

TEST(unicode, finds_the_first_byte_that_is_not_text) {
  const std::pair<std::string, std::size_t> cases[] = {{"plain text, more than eight", std::string::npos},
                                                       {"abc\xff", 3},
                                                       {"12345678\x80", 8},
                                                       {"\xC0\xAF", 0},
                                                       {"\xED\xA0\x80", 0},
                                                       {"\xF4\x90\x80\x80", 0},
                                                       {"\xE2\x82", 0},
                                                       {"ok\xE2\x82\xAC!\xE2", 6},
                                                       {"\xF0\x8F\xBF\xBF", 0},
                                                       {"\xE0\x9F\xBF", 0}};
  for (const auto& [text, want] : cases) EXPECT_EQ(find_invalid_utf8(text), want) << text;
}

TEST(unicode, replaces_maximal_parts) {
  const std::string r = "\uFFFD";
  EXPECT_EQ(replace_invalid_utf8("a\xff\xfe"), "a" + r + r);
  EXPECT_EQ(replace_invalid_utf8("\xE2\x82 x"), r + " x");
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x98"), r);
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), r + r + r);
  EXPECT_EQ(replace_invalid_utf8("\xC3("), r + "(");
}

TEST(unicode, holds_back_only_what_can_still_be_completed) {
  EXPECT_EQ(complete_utf8_prefix("ab\xE2\x82"), 2u);
  EXPECT_EQ(complete_utf8_prefix("ab\xE2\x82\xAC"), 5u);
  EXPECT_EQ(complete_utf8_prefix("ab\xFF"), 3u);
  EXPECT_EQ(complete_utf8_prefix("ab\xE2("), 4u);
  EXPECT_EQ(complete_utf8_prefix("\x80\x80\x80\x80"), 4u);
  EXPECT_EQ(complete_utf8_prefix(""), 0u);
}

TEST(unicode, classes) {
  EXPECT_EQ(char_class(U'a'), CharClass::letter);
  EXPECT_EQ(char_class(U'\u4e2d'), CharClass::letter);
  EXPECT_EQ(char_class(0x31350), CharClass::letter);  // Unicode 15
  EXPECT_EQ(char_class(U'\u0664'), CharClass::number);
  EXPECT_EQ(char_class(U'\u3000'), CharClass::space);
  EXPECT_EQ(char_class(U'\u180e'), CharClass::other);
  EXPECT_EQ(char_class(U'\u0301'), CharClass::other);
  EXPECT_EQ(char_class(0x10FFFF), CharClass::other);
  EXPECT_EQ(char_class(0x7FFFFFFF), CharClass::other);
  for (char32_t c : {U'a', U'_', U'7', U'\u0301', U'\u24b6', U'\u200d', U'\u0663'})
    EXPECT_TRUE(is_word(c)) << static_cast<unsigned>(c);
  for (char32_t c : {U' ', U'-', U'\u00bd', U'\U0001f600'}) EXPECT_FALSE(is_word(c)) << static_cast<unsigned>(c);
}

TEST(unicode, normal_forms) {
  EXPECT_EQ(normalize(NormalForm::nfc, "e\u0301 \u1112\u1161\u11ab"), "\u00e9 \ud55c");
  EXPECT_EQ(normalize(NormalForm::nfd, "\u00e9"), "e\u0301");
  EXPECT_EQ(normalize(NormalForm::nfkc, "\ufb01 \uff11"), "fi 1");
  EXPECT_EQ(normalize(NormalForm::nfkd, "\u00bd"), "1\u20442");
  const std::string nul("a\0\u00e9b", 5);
  EXPECT_EQ(normalize(NormalForm::nfc, nul), nul);
  EXPECT_EQ(normalize(NormalForm::nfc, ""), "");
}

// By insertion this takes 10^11 steps.
TEST(unicode, a_long_run_of_marks_is_put_in_order) {
  std::string mixed = "e", above, below;
  for (int i = 0; i < 400'000; ++i) {
    mixed += i % 2 == 0 ? "\u0302" : "\u0323";  // classes 230 and 220
    (i % 2 == 0 ? above : below) += i % 2 == 0 ? "\u0302" : "\u0323";
  }
  const std::string sorted = below + above;
  EXPECT_TRUE(normalize(NormalForm::nfd, mixed) == "e" + sorted);
  // e with the first dot and the first circumflex is one character.
  EXPECT_TRUE(normalize(NormalForm::nfc, mixed) == "\u1ec7" + sorted.substr(2, below.size() - 2) + above.substr(2));
  EXPECT_TRUE(normalize(NormalForm::nfkd, sorted) == sorted);
}

TEST(unicode, a_final_consonant_that_is_none_stays) {
  for (const auto form : {NormalForm::nfc, NormalForm::nfkc}) {
    EXPECT_EQ(normalize(form, "\uac00\u11a7"), "\uac00\u11a7");
    EXPECT_EQ(normalize(form, "\u1100\u1161\u11a7x\uac00\u11a8"), "\uac00\u11a7x\uac01");
  }
}

}  // namespace
}  // namespace hpcdl::io

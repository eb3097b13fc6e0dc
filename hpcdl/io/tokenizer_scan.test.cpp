#include "hpcdl/io/tokenizer_scan.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/io/tokenizer_regex.h"
#include "hpcdl/io/tokenizer_split.h"
#include "hpcdl/io/unicode.h"
#include "hpcdl/rng.h"

namespace hpcdl::io {
namespace {

std::vector<std::string> by_regex(const Regex& regex, std::string_view text) {
  std::vector<std::string> words;
  Regex::Match m{};
  for (std::size_t at = 0; at < text.size() && regex.find(text, at, m); at = m.end) {
    EXPECT_EQ(m.begin, at) << "a gap between words";
    words.emplace_back(text.substr(m.begin, m.end - m.begin));
  }
  return words;
}

std::vector<std::string> by_scan(const WordScan& scan, std::string_view text) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = scan.word_end(text, at);
    EXPECT_GT(end, at);
    words.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

/// Text made of a few characters of every class, so that every branch of the patterns is combined with every other.
std::string random_text(const Rng& rng, std::uint64_t& draw) {
  static const std::vector<std::string> parts = {"a",      "S",
                                                 "t",      "ll",
                                                 "re",     "VE",
                                                 "\u00e9", "\u4e2d",
                                                 "\u017f", "1",
                                                 "23",     "\u0664",
                                                 "\u2167", " ",
                                                 "  ",     "\n",
                                                 "\r",     "\t",
                                                 "\u00a0", "\u3000",
                                                 "\u2028", "\u180e",
                                                 "\u0085", "'",
                                                 "!",      ".",
                                                 "'s",     "'D",
                                                 "$",      "\u0301",
                                                 "\u200d", "\U0001f600",
                                                 "\ue000", std::string(1, '\0')};
  std::string text;
  for (std::uint64_t n = rng.below(draw++, 24); n > 0; --n) text += parts[rng.below(draw++, parts.size())];
  return text;
}

class ScanOf : public testing::TestWithParam<std::string_view> {};

TEST_P(ScanOf, equals_the_regular_expression) {
  const WordScan scan = WordScan::of(GetParam()).value();
  const Regex regex(GetParam());
  const Rng rng{.seed = 3};
  std::uint64_t draw = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::string text = random_text(rng, draw);
    ASSERT_EQ(by_scan(scan, text), by_regex(regex, text)) << text;
  }
}

TEST_P(ScanOf, may_be_cut_where_it_says) {
  const WordScan scan = WordScan::of(GetParam()).value();
  const Rng rng{.seed = 4};
  std::uint64_t draw = 0;
  int cuts = 0;
  for (int i = 0; i < 5000; ++i) {
    const std::string text = random_text(rng, draw) + "x y" + random_text(rng, draw);
    const std::size_t cut = find_safe_cut(text, rng.below(draw++, text.size()));
    if (cut == std::string::npos) continue;
    ++cuts;
    auto parts = by_scan(scan, std::string_view(text).substr(0, cut));
    for (auto& word : by_scan(scan, std::string_view(text).substr(cut))) parts.push_back(word);
    ASSERT_EQ(parts, by_scan(scan, text)) << text;
  }
  EXPECT_GT(cuts, 1000);
}

INSTANTIATE_TEST_SUITE_P(io, ScanOf, testing::Values(kGpt2Pattern, kLlama3Pattern, kQwen2Pattern));

TEST(regex, white_space_is_that_of_unicode) {
  const Regex regex(R"([^\s]+)");
  Regex::Match m{};
  ASSERT_TRUE(regex.find("\u2003a\u180eb\u0085", 0, m));
  EXPECT_EQ(m.begin, 3u);
  EXPECT_EQ(m.end, 3u + 5);
}

TEST(regex, refuses_what_engines_read_differently) {
  for (const char* pattern :
       {R"(\w+)", R"(\bx)", R"(\h)", "[a&&b]", "[a[b]]", R"(\p{N}{1,3}+)", R"(a\)", "(*UTF8)a", R"([\S])", R"(\1)"})
    EXPECT_THROW(Regex{pattern}, Error) << pattern;
}

TEST(regex, gives_up_instead_of_running_forever) {
  const Regex regex("(?:a|a?)+(?:a|a?)+[bc]");
  Regex::Match m{};
  EXPECT_THROW(regex.find(std::string(300, 'a'), 0, m), Error);
}

TEST(regex, literals_stand_for_themselves) {
  Regex::Match m{};
  ASSERT_TRUE(Regex::literal("a.b(c)[\\d]#- ").find("xa.b(c)[\\d]#- ", 0, m));
  EXPECT_EQ(m.begin, 1u);
  EXPECT_FALSE(Regex::literal("a.b").find("axb", 0, m));
}

}  // namespace
}  // namespace hpcdl::io

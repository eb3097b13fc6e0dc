#include "hpcdl/serve/stop_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace hpcdl::serve {
namespace {

/// What remains of a text that arrives in these parts.
std::string passed(const std::vector<std::string>& stops, const std::vector<std::string>& parts, bool* stopped) {
  StopText s(stops);
  std::string out;
  for (const auto& p : parts) {
    out += s.push(p);
    if (s.stopped()) break;
  }
  out += s.finish();
  *stopped = s.stopped();
  return out;
}

/// By looking at every beginning of the text in turn.
std::string expected(const std::vector<std::string>& stops, const std::string& text, bool* stopped) {
  *stopped = true;
  for (std::size_t n = 1; n <= text.size(); ++n) {
    std::size_t longest = 0;
    for (const auto& s : stops)
      if (std::string_view(text).substr(0, n).ends_with(s)) longest = std::max(longest, s.size());
    if (longest > 0) return text.substr(0, n - longest);
  }
  *stopped = false;
  return text;
}

TEST(StopText, does_not_depend_on_how_the_text_is_cut) {
  const std::vector<std::vector<std::string>> sets = {{},
                                                      {"END"},
                                                      {"abcd", "bc"},
                                                      {"aab", "ab", "b"},
                                                      {"\n\nUser:"},
                                                      {"é", "aé"},
                                                      {"aaa", "aaaaaaa"},
                                                      {"x", "END", "\n"}};
  const std::vector<std::string> texts = {
      "",    "abcd",     "aabcd",   "one END two", "EEND", "ENENDEND", "a\n\nUse\n\nUser: b",
      "caé", "aaaaaaaa", "nothing", "\n\nUser",    "EN"};
  for (const auto& stops : sets)
    for (const auto& text : texts) {
      bool want_stop = false, stop = false;
      const auto want = expected(stops, text, &want_stop);
      for (std::size_t a = 0; a <= text.size(); ++a)
        for (std::size_t b = a; b <= text.size(); ++b) {
          EXPECT_EQ(passed(stops, {text.substr(0, a), text.substr(a, b - a), text.substr(b)}, &stop), want)
              << text << " cut at " << a << " and " << b;
          EXPECT_EQ(stop, want_stop) << text;
        }
      std::vector<std::string> bytes;
      for (const char c : text) bytes.emplace_back(1, c);
      EXPECT_EQ(passed(stops, bytes, &stop), want) << text;
    }
}

TEST(StopText, random_texts_of_two_letters) {
  std::mt19937 random(1);
  const auto word = [&](std::size_t most) {
    std::string w(1 + random() % most, 'a');
    for (auto& c : w) c = random() % 2 ? 'a' : 'b';
    return w;
  };
  for (int i = 0; i < 20000; ++i) {
    const std::vector<std::string> stops = {word(5), word(4), word(6)};
    const auto text = word(24);
    std::vector<std::string> parts;
    for (std::size_t at = 0; at < text.size();) {
      parts.push_back(text.substr(at, 1 + random() % 5));
      at += parts.back().size();
    }
    bool want_stop = false, stop = false;
    const auto want = expected(stops, text, &want_stop);
    ASSERT_EQ(passed(stops, parts, &stop), want) << text << ": " << stops[0] << " " << stops[1] << " " << stops[2];
    ASSERT_EQ(stop, want_stop);
  }
}

TEST(StopText, holds_back_no_more_than_may_become_a_stop) {
  StopText s({"END"});
  EXPECT_EQ(s.push("one E"), "one ");
  EXPECT_EQ(s.push("x EN"), "Ex ");
  EXPECT_EQ(s.push("EN"), "EN");
  EXPECT_EQ(s.finish(), "EN");
}

}  // namespace
}  // namespace hpcdl::serve

#include "hpcdl/io/tokenizer_regex.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/unicode.h"

namespace hpcdl::io {
namespace {

Json golden(const char* key) {
  const Json all = read_json(fs::path(HPCDL_SOURCE_DIR) / "hpcdl/io/golden/regex.json");
  return all.at(key);
}

std::vector<std::string> words(const Regex& regex, const std::string& text) {
  std::vector<std::string> out;
  Regex::Match m{};
  for (std::size_t from = 0; from <= text.size() && regex.find(text, from, m);) {
    from = m.end;
    if (m.end > m.begin) {
      out.push_back(text.substr(m.begin, m.end - m.begin));
      continue;
    }
    if (from == text.size()) break;
    next_code_point(text, from);
  }
  return out;
}

std::string refusal(const std::string& pattern) {
  try {
    const Regex regex(pattern);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(regex, finds_what_the_library_finds) {
  const Json cases = golden("words");
  ASSERT_GT(cases.size(), 60u);
  for (const auto& c : cases) {
    const auto pattern = c[0].get<std::string>(), text = c[1].get<std::string>();
    EXPECT_EQ(words(Regex(pattern), text), c[2].get<std::vector<std::string>>()) << pattern;
  }
}

TEST(regex, refuses_by_name_what_has_another_meaning) {
  const std::pair<const char*, const char*> cases[] = {
      {"(?s:a.b)", "the option s in (?s)"},
      {"(?x) a b", "the option x in (?x)"},
      {"(?P<n>a)", "the option P in (?P)"},
      {"(?|a|b)", "a group that begins with (?|a"},
      {"(?)a", "a group that begins with (?)a"},
      {"(?R)", "the option R"},
      {"(*UCP)a", "a verb of the form (*...)"},
      {"(?i:ss)", "a character whose case folds to several"},
      {"(?i:\u017fS)", "a character whose case folds to several"},
      {"(?i)the fish", "a character whose case folds to several"},
      {"(?i:[\u00df])", "a character whose case folds to several"},
      {"(?i:[\u00c0-\u00ff])", "a character whose case folds to several"},
      {"(?i:\\x{df})", "a character whose case folds to several"},
      {"(?i:[\\p{Lu}])", "a property inside a class if case is ignored"},
      {"a{2}?", "{n}?"},
      {"a{1,2}+", "a possessive {n,m}+"},
      {"\\pL", "\\p without the name of a property in braces"},
      {"\\p{sc:Han}", "\\p{sc:Han}"},
      {"\\p{Xan}", "\\p{Xan}"},
      {"\\p{L&}", "\\p{L&}"},
      {"\\xe9", "\\x of a byte that is no character"},
      {"\\x{110000}", "\\x without the number of a character"},
      {"\\x{4e", "\\x without the number of a character"},
      {"[a[b]]", "a class inside a class"},
      {"[a&&b]", "an intersection of classes (&&)"},
      {"\\Ba", "\\B"},
      {"[\\A]", "\\A inside a class"},
      {"a\\", "a backslash at its end"},
      {"a\xff", "a pattern is not well-formed UTF-8"},
      {"(?<n", "a group whose name does not end"},
      {"(", "cannot read the pattern"},
      {"a)", "cannot read the pattern"},
  };
  for (const auto& [pattern, part] : cases) {
    const auto message = refusal(pattern);
    EXPECT_NE(message.find(part), std::string::npos) << pattern << ": " << message;
  }
  for (const char* fine : {"ss", "[\u00df]", "(?i:s)s", "(?i:s)(?i:s)", "(?i)a(?-i)ss", "(?i:sxs)", "\\p{Lu}"})
    EXPECT_EQ(refusal(fine), "") << fine;
}

TEST(regex, a_literal_is_what_it_says) {
  for (const std::string text : {"(?i)", "{,3}", "a\\p{L}", "[x]", "^$.|?*+-&#", "\u00df(", "{2}?"}) {
    const auto found = words(Regex::literal(text), "<" + text + ">");
    EXPECT_EQ(found, std::vector<std::string>{text});
  }
}

TEST(unicode, normal_forms_are_those_of_the_library) {
  const Json cases = golden("forms");
  ASSERT_GT(cases.size(), 100u);
  constexpr NormalForm kForms[] = {NormalForm::nfc, NormalForm::nfd, NormalForm::nfkc, NormalForm::nfkd};
  for (const auto& c : cases)
    for (std::size_t i = 0; i < 4; ++i)
      EXPECT_EQ(normalize(kForms[i], c[0].get<std::string>()), c[i + 1].get<std::string>())
          << i << " of " << c[0].dump(-1, ' ', true);
}

}  // namespace
}  // namespace hpcdl::io

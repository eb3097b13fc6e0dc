#include "hpcdl/io/tokenizer_scan.h"

#include <algorithm>
#include <array>
#include <climits>

#include "hpcdl/io/unicode.h"

namespace hpcdl::io {
namespace {

constexpr std::size_t npos = std::string_view::npos;

constexpr std::array<CharClass, 128> kAscii = [] {
  std::array<CharClass, 128> t{};
  for (int c = 0; c < 128; ++c) {
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) t[static_cast<std::size_t>(c)] = CharClass::letter;
    if (c >= '0' && c <= '9') t[static_cast<std::size_t>(c)] = CharClass::number;
    if (c == ' ' || (c >= 9 && c <= 13)) t[static_cast<std::size_t>(c)] = CharClass::space;
  }
  return t;
}();

constexpr bool is_line_end(char c) { return c == '\r' || c == '\n'; }

/// Returns the class of the character at `at`, and moves past it.
CharClass next_class(std::string_view text, std::size_t& at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < 0x80) return ++at, kAscii[byte];
  return char_class(next_code_point(text, at));
}

/// End of the run of `wanted` that begins at `at`, of at most `limit` characters.
std::size_t run_end(std::string_view text, std::size_t at, CharClass wanted, int limit = INT_MAX) {
  for (std::size_t next = at; at < text.size() && limit-- > 0; at = next)
    if (next_class(text, next) != wanted) break;
  return at;
}

/// Length of 's 't 're 've 'm 'll 'd at text[at]; 0 if none. With `fold`, in any case; U+017F folds to s.
std::size_t contraction(std::string_view text, std::size_t at, bool fold) {
  const auto lower = [&](std::size_t i) {
    const char c = i < text.size() ? text[i] : '\0';
    return fold && c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  };
  if (text[at] != '\'') return 0;
  const char a = lower(at + 1), b = lower(at + 2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
  if (fold && text.substr(at + 1, 2) == "\u017F") return 3;
  return 0;
}

/// \s+(?!\S)|\s+ : a run of white space leaves its last character to the word after it, unless it has only one.
std::size_t space_end(std::string_view text, std::size_t at, std::size_t run) {
  if (run == text.size()) return run;
  std::size_t last = run - 1;
  while ((static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
  return last > at ? last : run;
}

std::size_t gpt2_end(std::string_view text, std::size_t at) {
  if (const std::size_t n = contraction(text, at, false)) return at + n;
  std::size_t next = at;
  CharClass kind = next_class(text, next);
  if (text[at] == ' ' && next < text.size()) kind = next_class(text, next);
  if (kind != CharClass::space) return run_end(text, next, kind);
  return space_end(text, at, run_end(text, next, CharClass::space));
}

std::size_t cl100k_end(std::string_view text, std::size_t at, int max_digits) {
  if (const std::size_t n = contraction(text, at, true)) return at + n;
  std::size_t next = at;
  const CharClass kind = next_class(text, next);
  if (kind == CharClass::letter) return run_end(text, next, CharClass::letter);
  if (kind == CharClass::number) return run_end(text, next, CharClass::number, max_digits - 1);
  std::size_t second = next;
  const CharClass after = next < text.size() ? next_class(text, second) : CharClass::space;
  if (after == CharClass::letter && !is_line_end(text[at])) return run_end(text, second, CharClass::letter);
  if (kind == CharClass::other || (text[at] == ' ' && after == CharClass::other)) {
    std::size_t end = run_end(text, next, CharClass::other);
    while (end < text.size() && is_line_end(text[end])) ++end;
    return end;
  }
  const std::size_t run = run_end(text, next, CharClass::space);
  for (std::size_t i = run; i > at; --i)
    if (is_line_end(text[i - 1])) return i;
  return space_end(text, at, run);
}

}  // namespace

std::optional<WordScan> WordScan::of(std::string_view pattern) {
  if (pattern == kGpt2Pattern) return WordScan{.gpt2 = true};
  if (pattern == kLlama3Pattern) return WordScan{.max_digits = 3};
  if (pattern == kQwen2Pattern) return WordScan{.max_digits = 1};
  return std::nullopt;
}

std::size_t WordScan::word_end(std::string_view text, std::size_t at) const {
  return gpt2 ? gpt2_end(text, at) : cl100k_end(text, at, max_digits);
}

std::size_t find_safe_cut(std::string_view text, std::size_t from) {
  for (std::size_t at = std::max<std::size_t>(from, 1); at < text.size(); ++at) {
    if (text[at] < 0 || kAscii[static_cast<std::size_t>(text[at])] != CharClass::space) continue;
    std::size_t before = at - 1;
    while (before > 0 && (static_cast<unsigned char>(text[before]) & 0xC0) == 0x80) --before;
    if (next_class(text, before) == CharClass::letter) return at;
  }
  return npos;
}

}  // namespace hpcdl::io

#pragma once
// Reads the characters of a pattern or a grammar, for error messages that name the place.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "hpcdl/core/error.h"
#include "hpcdl/io/unicode.h"

namespace hpcdl::infer::grammar {

inline constexpr int kMaxNesting = 200;     // of groups
inline constexpr int kMaxRepeat = 100'000;  // times

class PatternText {
 public:
  /// Throws Error for text that is longer than `limit` or not UTF-8. `what` begins messages: "the regular expression".
  PatternText(std::string_view text, std::string what, std::size_t limit) : text_(text), what_(std::move(what)) {
    require(text.size() <= limit, "grammar", "{}: expected at most {} bytes, found {}", what_, limit, text.size());
    const auto bad = io::find_invalid_utf8(text);
    require(bad == std::string_view::npos, "grammar", "{}: expected UTF-8, found something else at byte {}", what_,
            bad);
  }

  bool at_end() const { return at_ == text_.size(); }
  char peek(std::size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool starts_with(std::string_view word) const { return text_.substr(at_).starts_with(word); }
  bool take(std::string_view word) {
    if (!starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  char32_t next() {
    if (at_end()) mistake("expected a character, found the end");
    return io::next_code_point(text_, at_);
  }
  /// As many of the next characters as `belongs` accepts.
  template <class F> std::string_view take_while(F&& belongs) {
    const std::size_t begin = at_;
    while (!at_end() && belongs(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  std::size_t place() const { return at_; }
  void go_to(std::size_t place) { at_ = place; }

  /// The value of exactly `digits` hexadecimal digits.
  char32_t hex(std::size_t digits) {
    char32_t value = 0;
    for (std::size_t i = 0; i < digits; ++i) value = value * 16 + hex_digit();
    return checked(value);
  }
  /// A whole number of decimal digits; none if there is no digit here.
  std::optional<int> number() {
    const auto digits = take_while([](char c) { return c >= '0' && c <= '9'; });
    if (digits.empty()) return std::nullopt;
    if (digits.size() > 9) mistake("expected a repeat of at most 9 digits");
    return std::stoi(std::string(digits));
  }
  char32_t checked(char32_t point) const {
    if (point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF))
      mistake("expected a Unicode character, found a code that is none");
    return point;
  }
  /// Throws Error with the line and the column.
  [[noreturn]] void mistake(std::string_view message) const {
    std::size_t line = 1, column = 1;
    for (std::size_t i = 0; i < at_;) {
      const bool newline = text_[i] == '\n';
      io::next_code_point(text_, i);
      line += newline;
      column = newline ? 1 : column + 1;
    }
    fail("grammar", "{}, line {}, column {}: {}", what_, line, column, message);
  }

 private:
  char32_t hex_digit() {
    const char c = peek();
    const auto digit = std::string_view("0123456789abcdef").find(static_cast<char>(c | 0x20));
    const bool is_letter = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    if (!is_letter && !(c >= '0' && c <= '9')) mistake("expected a hexadecimal digit");
    ++at_;
    return static_cast<char32_t>(digit);
  }

  std::string_view text_;
  std::string what_;
  std::size_t at_ = 0;
};

}  // namespace hpcdl::infer::grammar

#include "hpcdl/io/jinja/lexer.h"

#include <algorithm>
#include <array>

#include "hpcdl/core/error.h"
#include "hpcdl/io/jinja/text.h"
#include "hpcdl/io/unicode.h"

namespace hpcdl::io::jinja {
namespace {

/// Every end of line becomes "\n"; the last one is dropped.
std::string with_plain_lines(std::string_view source) {
  std::string out;
  for (std::size_t at = 0; at < source.size(); ++at) {
    if (source[at] == '\r') {
      out += '\n';
      at += source.substr(at, 2) == "\r\n";
    } else {
      out += source[at];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

bool digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  Lexer(std::string_view source, std::string_view name) : text_(source), name_(name) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) {
      const std::size_t open = find_tag();
      const char kind = open == std::string_view::npos ? '\0' : text_[open + 1];
      const char sign = kind && open + 2 < text_.size() ? text_[open + 2] : '\0';
      add_text(open == std::string_view::npos ? text_.substr(at_) : text_.substr(at_, open - at_), kind, sign);
      if (!kind) {
        move_to(text_.size());
        break;
      }
      move_to(open + (sign == '-' || sign == '+' ? 3 : 2));
      if (kind == '#') comment();
      else if (kind == '%' && raw_tag(at_, "raw") != at_) raw();
      else tag(kind == '{');
    }
    add(TokenKind::end, {});
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(std::string_view what) const { hpcdl::fail("io", "{}, line {}: {}", name_, line_, what); }

  void add(TokenKind kind, std::string text) { out_.push_back({kind, std::move(text), line_}); }

  void move_to(std::size_t at) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
    at_ = at;
  }

  std::size_t find_tag() const {
    for (std::size_t at = text_.find('{', at_); at != std::string_view::npos; at = text_.find('{', at + 1)) {
      const char next = at + 1 < text_.size() ? text_[at + 1] : '\0';
      if (next == '{' || next == '%' || next == '#') return at;
    }
    return std::string_view::npos;
  }

  /// The text before a tag: "-" strips its end, and blanks before a tag that begins a line go.
  void add_text(std::string_view text, char kind, char sign) {
    if (sign == '-') {
      text = strip_spaces(text, false, true);
    } else if ((kind == '%' || kind == '#') && sign != '+') {
      const std::size_t line = text.rfind('\n') + 1;
      if ((line > 0 || line_begins_) && strip_spaces(text.substr(line)).empty()) text = text.substr(0, line);
    }
    if (!text.empty()) add(TokenKind::text, std::string(text));
  }

  std::size_t skip_space(std::size_t at) const {
    for (std::size_t next = at; next < text_.size(); at = next)
      if (!is_python_space(next_code_point(text_, next))) return at;
    return text_.size();
  }

  /// The position after the end of a tag or comment at `at`; "-" eats the white space after it, otherwise one end of line goes.
  std::size_t close(std::size_t at, std::string_view end, bool trim_line) const {
    const char sign = text_[at];
    at += end.size() + (sign == '-' || sign == '+');
    if (sign == '-') return skip_space(at);
    return at + (sign != '+' && trim_line && at < text_.size() && text_[at] == '\n');
  }

  void finish_tag(std::size_t at) {
    line_begins_ = at > at_ && text_[at - 1] == '\n';
    move_to(at);
  }

  void comment() {
    std::size_t end = text_.find("#}", at_);
    if (end == std::string_view::npos) fail("a comment {# does not end");
    if (end > at_ && (text_[end - 1] == '-' || text_[end - 1] == '+')) --end;
    finish_tag(close(end, "#}", true));
  }

  /// The position after "raw %}" at `at`, or `at` if there is something else.
  std::size_t raw_tag(std::size_t at, std::string_view word) const {
    std::size_t end = skip_space(at);
    if (text_.substr(end, word.size()) != word) return at;
    end = skip_space(end + word.size());
    const std::string_view rest = text_.substr(end);
    const bool signed_end = rest.starts_with("-%}") || (word != "raw" && rest.starts_with("+%}"));
    return signed_end || rest.starts_with("%}") ? close(end, "%}", word != "raw") : at;
  }

  void raw() {
    finish_tag(raw_tag(at_, "raw"));
    for (std::size_t open = text_.find("{%", at_); open != std::string_view::npos; open = text_.find("{%", open + 1)) {
      const char sign = open + 2 < text_.size() ? text_[open + 2] : '\0';
      const std::size_t inside = open + 2 + (sign == '-' || sign == '+'), end = raw_tag(inside, "endraw");
      if (end == inside) continue;
      add_text(text_.substr(at_, open - at_), '%', sign);
      return finish_tag(end);
    }
    fail("{% raw %} does not end");
  }

  void tag(bool print) {
    add(print ? TokenKind::print_begin : TokenKind::tag_begin, {});
    std::string open;  // brackets
    const std::string_view end = print ? "}}" : "%}";
    while (true) {
      move_to(skip_space(at_));
      if (at_ >= text_.size()) fail(print ? "{{ does not end" : "{% does not end");
      const std::string_view rest = text_.substr(at_);
      const bool sign = rest[0] == '-' || (rest[0] == '+' && !print);
      if (open.empty() && rest.substr(sign).starts_with(end)) break;
      token(rest, open);
    }
    add(print ? TokenKind::print_end : TokenKind::tag_end, {});
    finish_tag(close(at_, end, !print));
  }

  void token(std::string_view rest, std::string& open) {
    const char c = rest[0];
    if (digit(c)) return number(rest);
    if (c == '\'' || c == '"') return string(rest);
    std::size_t next = at_;
    if (is_word(next_code_point(text_, next))) return word();
    for (const std::string_view sign : {"==", "!=", ">=", "<=", "//", "**"})
      if (rest.starts_with(sign)) return take(TokenKind::sign, sign.size());
    if (std::string_view("()[]{}").find(c) != std::string_view::npos) balance(c, open);
    else if (std::string_view("+-/*%~<>=.:|,;").find(c) == std::string_view::npos)
      fail(fmt::format("'{}' is not part of an expression", rest.substr(0, next - at_)));
    take(TokenKind::sign, 1);
  }

  void take(TokenKind kind, std::size_t size) {
    add(kind, std::string(text_.substr(at_, size)));
    move_to(at_ + size);
  }

  void balance(char c, std::string& open) {
    constexpr std::string_view kOpen = "([{", kClose = ")]}";
    if (const auto i = kOpen.find(c); i != std::string_view::npos) {
      open += kClose[i];
      return;
    }
    if (open.empty() || open.back() != c) fail(fmt::format("'{}' closes a bracket that is not open", c));
    open.pop_back();
  }

  void word() {
    std::size_t end = at_;
    for (std::size_t next = at_; next < text_.size(); end = next)
      if (!is_word(next_code_point(text_, next))) break;
    take(TokenKind::name, end - at_);
  }

  void number(std::string_view rest) {
    const auto digits = [&](std::size_t at) {
      while (at < rest.size() && (digit(rest[at]) || (rest[at] == '_' && at + 1 < rest.size() && digit(rest[at + 1]))))
        ++at;
      return at;
    };
    if (rest.size() > 1 && rest[0] == '0' && std::string_view("xXoObB").find(rest[1]) != std::string_view::npos)
      fail("numbers in hexadecimal, octal or binary are not supported");
    std::size_t end = digits(0);
    const bool after_dot = !out_.empty() && out_.back().kind == TokenKind::sign && out_.back().text == ".";
    bool real = false;
    if (!after_dot && end + 1 < rest.size() && rest[end] == '.' && digit(rest[end + 1])) {
      real = true;
      end = digits(end + 1);
    }
    if (!after_dot && end < rest.size() && (rest[end] == 'e' || rest[end] == 'E')) {
      const std::size_t sign = end + 1 < rest.size() && (rest[end + 1] == '+' || rest[end + 1] == '-');
      if (end + 1 + sign < rest.size() && digit(rest[end + 1 + sign])) {
        real = true;
        end = digits(end + 1 + sign);
      }
    }
    take(real ? TokenKind::real : TokenKind::integer, end);
    std::erase(out_.back().text, '_');
  }

  void string(std::string_view rest) {
    std::size_t end = 1;
    while (end < rest.size() && rest[end] != rest[0]) end += rest[end] == '\\' ? 2 : 1;
    if (end >= rest.size()) fail("a string does not end");
    add(TokenKind::string, unescaped(rest.substr(1, end - 1)));
    move_to(at_ + end + 1);
  }

  std::string unescaped(std::string_view text) const {
    constexpr std::string_view kLetters = "nrtabfv\\'\"", kValues = "\n\r\t\a\b\f\v\\'\"";
    std::string out;
    for (std::size_t at = 0; at < text.size(); ++at) {
      if (text[at] != '\\') {
        out += text[at];
        continue;
      }
      const char c = text[++at];
      const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
      if (const auto i = kLetters.find(c); i != std::string_view::npos) {
        out += kValues[i];
      } else if (digits > 0) {
        append_point(out, text.substr(at + 1, digits), digits);
        at += digits;
      } else if (c >= '0' && c <= '7') {
        char32_t point = 0;
        for (std::size_t n = 0; n < 3 && at < text.size() && text[at] >= '0' && text[at] <= '7'; ++n, ++at)
          point = point * 8 + static_cast<char32_t>(text[at] - '0');
        --at;
        append_utf8(out, point);
      } else if (c == 'N') {
        fail("characters by name, \\N{...}, are not supported");
      } else if (c != '\n') {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  void append_point(std::string& out, std::string_view hex, std::size_t digits) const {
    if (hex.size() != digits || hex.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos)
      fail(fmt::format("an escape in a string needs {} hexadecimal digits", digits));
    const auto point = static_cast<char32_t>(std::stoul(std::string(hex), nullptr, 16));
    if (point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) fail("an escape in a string is not a character");
    append_utf8(out, point);
  }

  std::string_view text_, name_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_begins_ = true;  // after the last tag
  std::vector<Token> out_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, std::string_view name) {
  const std::size_t bad = find_invalid_utf8(source);
  if (bad != std::string_view::npos) fail("io", "{}: not UTF-8 at byte {}", name, bad);
  return Lexer(with_plain_lines(source), name).run();
}

}  // namespace hpcdl::io::jinja

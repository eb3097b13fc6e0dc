#include "hpcdl/io/regex_rewrite.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <optional>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/io/regex_folds.h"
#include "hpcdl/io/unicode.h"

namespace hpcdl::io {
namespace {

// White space of Unicode; PCRE2's own \s has U+180E too.
constexpr std::string_view kSpaceSet =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// In PCRE2 the bare name of a script means Script_Extensions.
bool is_script(std::string_view name) {
  const std::string pattern = fmt::format("\\p{{sc:{}}}", name);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF, &error, &offset, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

bool is_of_pcre2_alone(std::string_view name) {
  std::string lower;
  for (const char c : name)
    if (is_letter(c)) lower += static_cast<char>(c | 0x20);
  constexpr std::string_view kNames[] = {"xan", "xps", "xsp", "xuc", "xwd"};
  return std::find(std::begin(kNames), std::end(kNames), lower) != std::end(kNames);
}

class Rewriter {
 public:
  explicit Rewriter(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    while (at_ < in_.size()) {
      if (in_class_) step_in_class();
      else step();
    }
    close_options();
    return out_;
  }

 private:
  /// A group that is open. (?i) without a colon treats the rest of its group, including '|', as a separate group.
  struct Group {
    bool ignores_case = false;
    int options = 0;  // such groups within it, which end with this one
  };

  [[noreturn]] void unsupported(std::string_view what) const {
    fail("io", "tokenizer.json: the pattern '{}' uses {}, which is not supported", in_.substr(0, 200), what);
  }
  std::string_view rest() const { return in_.substr(at_); }
  void copy(std::size_t n) {
    out_ += in_.substr(at_, n);
    at_ += n;
  }

  void step() {
    const char c = in_[at_];
    if (c == '\\') return escape();
    if (c == '(') return open_group();
    if (c == '{' && quantifier()) return;
    if (c == '[') {
      in_class_ = true;
      const bool negated = rest().starts_with("[^");
      literals_.clear();
      copy(negated ? 2 : 1);
      class_begin_ = at_;
      last_.reset();
      return;
    }
    if (c == ')') {
      close_options();
      if (groups_.size() > 1) groups_.pop_back();
    }
    if (std::string_view(")|^$.?*+").find(c) == std::string_view::npos) return literal();
    literals_.clear();
    copy(1);
  }

  void close_options() {
    out_.append(static_cast<std::size_t>(groups_.back().options), ')');
    literals_.clear();
  }

  void open_group() {
    literals_.clear();
    if (rest().starts_with("(*")) unsupported("a verb of the form (*...)");
    if (rest().starts_with("(?#")) {
      at_ = std::min(in_.find(')', at_), in_.size() - 1) + 1;
      return;
    }
    Group inner{groups_.back().ignores_case};
    std::string_view head = "(";
    if (rest().starts_with("(?")) {
      for (const std::string_view known : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"})
        if (rest().starts_with(known)) head = known;
      if (head == "(") return named_or_options();
    }
    copy(head.size());
    groups_.push_back(inner);
  }

  void named_or_options() {
    if (rest().starts_with("(?<") || rest().starts_with("(?'")) {
      const std::size_t end = in_.find(in_[at_ + 2] == '<' ? '>' : '\'', at_ + 3);
      if (end == std::string_view::npos) unsupported("a group whose name does not end");
      at_ = end + 1;  // nothing can refer to it
      out_ += "(?:";
      groups_.push_back({groups_.back().ignores_case});
      return;
    }
    const std::size_t begin = at_ + 2;
    bool on = true, ignores_case = groups_.back().ignores_case, any = false;
    std::string options;
    for (at_ = begin; at_ < in_.size() && (in_[at_] == '-' || is_letter(in_[at_])); ++at_, any = true) {
      const char c = in_[at_];
      if (c == '-') on = false, options += '-';
      else if (c == 'i') ignores_case = on, options += 'i';
      else if (c == 'm') options += 's';  // its dot matches a line feed
      else unsupported(fmt::format("the option {} in (?{})", c, in_.substr(begin, at_ + 1 - begin)));
    }
    const bool isolated = rest().starts_with(')');
    if (!any || (!isolated && !rest().starts_with(':')))
      unsupported(fmt::format("a group that begins with {}", in_.substr(begin - 2, 4)));
    ++at_;
    out_ += "(?" + options + ":";
    if (!isolated) return groups_.push_back({ignores_case});
    groups_.back().ignores_case = ignores_case;
    ++groups_.back().options;
  }

  /// {n}, {n,}, {,m} or {n,m}; false: literal braces.
  bool quantifier() {
    const auto number = [&](std::size_t& at) {
      const std::size_t begin = at;
      while (at < in_.size() && is_digit(in_[at])) ++at;
      return in_.substr(begin, at - begin);
    };
    std::size_t at = at_ + 1;
    const auto low = number(at);
    const bool comma = at < in_.size() && in_[at] == ',';
    if (comma) ++at;
    const auto high = comma ? number(at) : low;
    if (at >= in_.size() || in_[at] != '}' || (low.empty() && high.empty())) return false;
    const char behind = at + 1 < in_.size() ? in_[at + 1] : ' ';
    if (behind == '+') unsupported("a possessive {n,m}+, which engines read differently");
    if (behind == '?' && !comma) unsupported("{n}?, which engines read differently");
    literals_.clear();
    out_ += low.empty() ? fmt::format("{{0,{}}}", high) : std::string(in_.substr(at_, at + 1 - at_));
    at_ = at + 1;
    return true;
  }

  /// A literal character outside of a class.
  void literal() {
    std::size_t end = at_;
    note_literal(next_code_point(in_, end));
    copy(end - at_);
  }

  void note_literal(char32_t c) {
    if (!groups_.back().ignores_case) return;
    literals_ += fold_case(c);
    if (any_folds_to_several(c, c) || ends_in_fold_of_one(literals_))
      unsupported("a character whose case folds to several, if case is ignored");
  }

  void step_in_class() {
    const char c = in_[at_];
    if (c == '\\') return escape();
    if (c == '[') unsupported("a class inside a class");
    if (rest().starts_with("&&")) unsupported("an intersection of classes (&&)");
    if (c == ']' && at_ > class_begin_) {
      in_class_ = false;
      copy(1);
      return;
    }
    std::size_t end = at_;
    note_member(next_code_point(in_, end));
    copy(end - at_);
  }

  /// A character of a class, the end of a range or the dash of one.
  void note_member(char32_t c) {
    if (c == U'-' && last_ && !in_range_) {
      in_range_ = true;
      return;
    }
    const char32_t low = in_range_ && last_ ? *last_ : c;
    if (groups_.back().ignores_case && any_folds_to_several(low, std::max(low, c)))
      unsupported("a character whose case folds to several, if case is ignored");
    last_ = in_range_ ? std::nullopt : std::optional(c);
    in_range_ = false;
  }

  void note(char32_t c) {
    if (in_class_) note_member(c);
    else note_literal(c);
  }
  /// An escape that is not a single character.
  void note_set() {
    last_.reset(), in_range_ = false;
    literals_.clear();
  }

  void escape() {
    if (at_ + 1 >= in_.size()) unsupported("a backslash at its end");
    const char c = in_[at_ + 1];
    if (c == 'p' || c == 'P') return property();
    if (c == 'x') return code_point();
    if (c == 's' || c == 'd' || c == 'D' || (c == 'S' && !in_class_)) {
      note_set();
      at_ += 2;
      if (c == 's') out_ += in_class_ ? std::string(kSpaceSet) : fmt::format("[{}]", kSpaceSet);
      else out_ += c == 'S' ? fmt::format("[^{}]", kSpaceSet) : c == 'd' ? "\\p{Nd}" : "\\P{Nd}";
      return;
    }
    if (c == 'A' && !in_class_) {
      note_set();
      return copy(2);
    }
    if (std::string_view("nrtfe").find(c) == std::string_view::npos) {
      if (is_letter(c) || is_digit(c)) unsupported(fmt::format("\\{}{}", c, in_class_ ? " inside a class" : ""));
      std::size_t end = at_ + 1;
      note(next_code_point(in_, end));
      return copy(end - at_);
    }
    note(U'\n');  // any character without case
    copy(2);
  }

  void code_point() {
    const bool braced = in_.substr(at_ + 2, 1) == "{";
    const std::size_t begin = at_ + (braced ? 3 : 2);
    std::uint32_t value = 0;
    const char* const first = in_.data() + begin;
    const char* const limit = in_.data() + (braced ? in_.size() : std::min(in_.size(), begin + 2));
    const auto [end, error] = std::from_chars(first, std::max(first, limit), value, 16);
    const bool whole = error == std::errc() && (!braced || (end < limit && *end == '}'));
    if (!whole || value > 0x10FFFF) unsupported("\\x without the number of a character");
    if (!braced && value >= 0x80) unsupported("\\x of a byte that is no character");
    at_ = begin + static_cast<std::size_t>(end - first) + (braced ? 1 : 0);
    note(value);
    out_ += fmt::format("\\x{{{:x}}}", value);
  }

  void property() {
    const std::size_t end = in_.substr(at_ + 2, 1) == "{" ? in_.find('}', at_) : std::string_view::npos;
    if (end == std::string_view::npos) unsupported("\\p without the name of a property in braces");
    const bool in_class = in_class_;
    if (in_class && groups_.back().ignores_case)
      unsupported("a property inside a class if case is ignored, which engines read differently");
    note_set();
    std::string_view name = in_.substr(at_ + 3, end - at_ - 3);
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
      return is_letter(c) || is_digit(c) || c == '_' || c == '-' || c == ' ';
    });
    if (name.empty() || !plain || is_of_pcre2_alone(name)) unsupported(fmt::format("\\p{{{}}}", name));
    out_ += fmt::format("\\{}{{{}{}{}}}", in_[at_ + 1], negated ? "^" : "", is_script(name) ? "sc:" : "", name);
    at_ = end + 1;
  }

  std::string_view in_;
  std::string out_;
  std::size_t at_ = 0, class_begin_ = 0;
  bool in_class_ = false, in_range_ = false;
  std::vector<Group> groups_{1};
  std::optional<char32_t> last_;  // in a class: the character that may begin a range
  std::u32string literals_;       // that stand beside each other if case is ignored, folded
};

}  // namespace

std::string rewrite_for_pcre2(std::string_view pattern) {
  require(find_invalid_utf8(pattern) == std::string_view::npos, "io",
          "tokenizer.json: a pattern is not well-formed UTF-8");
  return Rewriter(pattern).run();
}

}  // namespace hpcdl::io

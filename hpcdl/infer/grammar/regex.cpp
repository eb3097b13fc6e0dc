#include "hpcdl/infer/grammar/regex.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "hpcdl/infer/grammar/anchors.h"
#include "hpcdl/infer/grammar/pattern_text.h"

namespace hpcdl::infer::grammar {
namespace {

constexpr std::size_t kMaxPattern = std::size_t{64} << 10;

CharSet set_of(std::initializer_list<std::pair<char32_t, char32_t>> ranges) {
  CharSet set;
  for (const auto& [first, last] : ranges) set.add(CharSet::of(first, last));
  return set;
}
CharSet digits() { return CharSet::of('0', '9'); }
CharSet word() { return set_of({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}); }
/// [ \t\n\v\f\r]
CharSet space() { return set_of({{'\t', '\r'}, {' ', ' '}}); }

struct PosixClass {
  std::string_view name;
  CharSet set;
};
const std::array<PosixClass, 13>& posix_classes() {
  static const std::array<PosixClass, 13> all = {{
      {"alnum", set_of({{'0', '9'}, {'A', 'Z'}, {'a', 'z'}})},
      {"alpha", set_of({{'A', 'Z'}, {'a', 'z'}})},
      {"ascii", CharSet::of(0, 127)},
      {"blank", set_of({{'\t', '\t'}, {' ', ' '}})},
      {"cntrl", set_of({{0, 31}, {127, 127}})},
      {"digit", digits()},
      {"graph", CharSet::of('!', '~')},
      {"lower", CharSet::of('a', 'z')},
      {"print", CharSet::of(' ', '~')},
      {"punct", set_of({{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}})},
      {"space", space()},
      {"upper", CharSet::of('A', 'Z')},
      {"xdigit", set_of({{'0', '9'}, {'A', 'F'}, {'a', 'f'}})},
  }};
  return all;
}

class RegexParser {
 public:
  RegexParser(std::string_view pattern, Match match, const std::string& what)
      : text_(pattern, what, kMaxPattern), match_(match) {}

  Expression parse() {
    Expression all = choice();
    if (!text_.at_end()) text_.mistake("expected the end, found \")\" without \"(\"; write \"\\)\" for the character");
    return all;
  }
  const PatternText& text() const { return text_; }

 private:
  Expression choice() {
    if (++nesting_ > kMaxNesting) text_.mistake("expected groups nested at most 200 deep");
    std::vector<Expression> parts;
    do parts.push_back(sequence());
    while (text_.take("|"));
    --nesting_;
    return Expression::choice(std::move(parts));
  }

  Expression sequence() {
    std::vector<Expression> parts;
    while (!text_.at_end() && text_.peek() != '|' && text_.peek() != ')') parts.push_back(quantified());
    return Expression::sequence(std::move(parts));
  }

  Expression quantified() {
    Expression e = atom();
    bool repeated = false;
    for (;;) {
      int min = 0, max = kUnbounded;
      const std::size_t before = text_.place();
      if (text_.take("*")) {
      } else if (text_.take("+")) {
        min = 1;
      } else if (text_.take("?")) {
        max = 1;
      } else if (text_.peek() != '{' || !counts(min, max)) {
        return e;
      }
      if (repeated) {
        text_.go_to(before);
        text_.mistake("expected one repeat, found two in a row; put the first into a group");
      }
      text_.take("?");  // as few as possible: the same texts
      if (text_.peek() == '+') text_.mistake("possessive repeats are not supported");
      if (e.kind == Expression::Kind::begin || e.kind == Expression::Kind::end)
        text_.mistake("expected something to repeat, found an anchor");
      e = Expression::repeat(std::move(e), min, max);
      repeated = true;
    }
  }

  /// {n}, {n,} or {n,m}; any other brace is the character itself.
  bool counts(int& min, int& max) {
    const std::size_t before = text_.place();
    text_.take("{");
    const auto first = text_.number();
    bool ok = first.has_value();
    min = max = first.value_or(0);
    if (ok && text_.take(",")) max = text_.number().value_or(kUnbounded);
    ok = ok && text_.take("}");
    if (!ok) return text_.go_to(before), false;
    if (max != kUnbounded && max < min) text_.mistake("expected a repeat whose maximum is not less than its minimum");
    if (std::max(min, max) > kMaxRepeat) text_.mistake("expected a repeat of at most 100000 times");
    return true;
  }

  Expression atom() {
    if (text_.take("(")) return group();
    if (text_.take("[")) return Expression::chars(char_class());
    if (text_.take("^")) return {.kind = Expression::Kind::begin};
    if (text_.take("$")) return {.kind = Expression::Kind::end};
    if (text_.take(".")) return Expression::chars(any());
    if (text_.take("\\")) return escape();
    if (text_.peek() == '*' || text_.peek() == '+' || text_.peek() == '?')
      text_.mistake("expected something to repeat");
    if (text_.peek() == '{') {
      int min = 0, max = 0;
      if (counts(min, max)) text_.mistake("expected something to repeat");
    }
    const char32_t c = text_.next();
    return Expression::chars(CharSet::of(c, c));
  }

  CharSet any() const {
    return match_ == Match::whole ? ~CharSet::of('\n', '\n') : ~set_of({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}});
  }

  Expression group() {
    if (text_.take("?")) {
      for (const std::string_view look : {"=", "!", "<=", "<!"})
        if (text_.starts_with(look)) text_.mistake("look-around is not supported");
      if (text_.take("P<") || text_.take("<")) {
        const auto name =
            text_.take_while([](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; });
        if (name.empty() || !text_.take(">")) text_.mistake("expected a name of a group, as in (?<name>...)");
      } else if (!text_.take(":")) {
        text_.mistake("expected \"(?:\" or \"(?<name>\"; flags and other groups are not supported");
      }
    }
    Expression inner = choice();
    if (!text_.take(")")) text_.mistake("expected \")\"");
    return inner;
  }

  Expression escape() {
    const char c = text_.peek();
    if (c >= '1' && c <= '9') text_.mistake("back-references are not supported");
    if (c == 'b' || c == 'B') text_.mistake("word boundaries are not supported");
    if (c == 'k') text_.mistake("back-references are not supported");
    if (text_.take("A")) return {.kind = Expression::Kind::begin};
    if (text_.take("z")) return {.kind = Expression::Kind::end};
    return Expression::chars(escaped_set());
  }

  /// The characters of an escape, after the backslash.
  CharSet escaped_set() {
    if (text_.at_end()) text_.mistake("expected a character after \"\\\"");
    if (text_.take("d")) return digits();
    if (text_.take("D")) return ~digits();
    if (text_.take("w")) return word();
    if (text_.take("W")) return ~word();
    if (text_.take("s")) return space();
    if (text_.take("S")) return ~space();
    if (text_.peek() == 'p' || text_.peek() == 'P') return category();
    const char32_t c = escaped_char();
    return CharSet::of(c, c);
  }

  CharSet category() {
    const bool negated = text_.next() == 'P';
    const bool braces = text_.take("{");
    const auto name = text_.take_while([n = 0](char c) mutable { return c != '}' && n++ < 2; });
    const auto set = CharSet::category(braces ? name : name.substr(0, 1));
    if (!braces && name.size() > 1) text_.go_to(text_.place() - name.size() + 1);
    if (braces && !text_.take("}")) text_.mistake("expected \"}\"");
    if (!set) text_.mistake("expected a general category of Unicode, such as \\p{L} or \\p{Lu}");
    return negated ? ~*set : *set;
  }

  char32_t escaped_char() {
    constexpr std::string_view kLetters = "tnrfva0", kMeaning("\t\n\r\f\v\a\0", 7);
    const char32_t c = text_.next();
    if (c == 'x') {
      if (!text_.take("{")) return text_.hex(2);
      const auto digits = text_.take_while([](char d) { return std::isxdigit(static_cast<unsigned char>(d)); });
      if (digits.empty() || digits.size() > 6 || !text_.take("}"))
        text_.mistake("expected \\x{10FFFF} or a smaller number");
      return text_.checked(static_cast<char32_t>(std::stoul(std::string(digits), nullptr, 16)));
    }
    if (c == 'u') return text_.hex(4);
    if (c < 0x80 && std::isalnum(static_cast<int>(c))) {
      const auto at = kLetters.find(static_cast<char>(c));
      if (at == std::string_view::npos) text_.mistake("this escape is not supported");
      return static_cast<char32_t>(kMeaning[at]);
    }
    return c;
  }

  CharSet char_class() {
    const bool negated = text_.take("^");
    CharSet set;
    bool first = true;
    // RE2 and Python take "]" at the beginning as a character; in ECMAScript it ends an empty class.
    while (!text_.starts_with("]") || (first && match_ == Match::whole)) {
      if (text_.at_end()) text_.mistake("expected \"]\"");
      first = false;
      add_item(set);
    }
    text_.take("]");
    return negated ? ~set : set;
  }

  void add_item(CharSet& set) {
    if (text_.starts_with("[:")) return add_posix(set);
    const auto one = class_char(set);
    if (text_.peek() != '-' || text_.peek(1) == ']' || text_.peek(1) == '\0') {
      if (one) set.add(CharSet::of(*one, *one));
      return;
    }
    text_.take("-");
    CharSet ignored;
    const auto last = class_char(ignored);
    if (!one || !last) text_.mistake("expected a range between two characters, found a class at one of its ends");
    if (*last < *one) text_.mistake("expected a range from a lower to a higher character");
    set.add(CharSet::of(*one, *last));
  }

  /// One character; or none, if it was an escape of several, which are added.
  std::optional<char32_t> class_char(CharSet& set) {
    if (!text_.take("\\")) return text_.next();
    if (std::string_view("dDwWsSpP").find(text_.peek()) != std::string_view::npos && !text_.at_end()) {
      set.add(escaped_set());
      return std::nullopt;
    }
    if (text_.take("b")) return U'\b';
    return escaped_char();
  }

  void add_posix(CharSet& set) {
    const std::size_t before = text_.place();
    text_.take("[:");
    const bool negated = text_.take("^");
    const auto name = text_.take_while([](char c) { return c >= 'a' && c <= 'z'; });
    const auto& all = posix_classes();
    const auto it = std::find_if(all.begin(), all.end(), [&](const auto& c) { return c.name == name; });
    if (!text_.take(":]") || it == all.end()) {
      text_.go_to(before);
      text_.mistake("expected a class such as [:alpha:]; write \"\\[\" for the character");
    }
    set.add(negated ? ~it->set : it->set);
  }

  PatternText text_;
  Match match_;
  int nesting_ = 0;
};

}  // namespace

Expression parse_regex(std::string_view pattern, Match match, const std::string& what) {
  RegexParser parser(pattern, match, what);
  return without_anchors(parser.parse(), match == Match::search, what);
}

std::unique_ptr<const Rules> rules_of_regex(std::string_view pattern) {
  const Expression e = parse_regex(pattern, Match::whole);
  Builder builder;
  builder.set_place("the regular expression: ");
  const RuleId root = builder.rule("the regular expression");
  build(builder, e, builder[root].start, builder[root].end, Encoding::utf8);
  return builder.finish(root);
}

}  // namespace hpcdl::infer::grammar

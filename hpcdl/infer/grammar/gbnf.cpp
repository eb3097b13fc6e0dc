#include "hpcdl/infer/grammar/gbnf.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/infer/grammar/expression.h"
#include "hpcdl/infer/grammar/pattern_text.h"

namespace hpcdl::infer::grammar {
namespace {

constexpr std::size_t kMaxGbnf = std::size_t{256} << 10;

struct NamedRule {
  std::string name;
  Expression body;
  bool defined = false;
  std::size_t place = 0;  // of its first mention
};

class GbnfParser {
 public:
  explicit GbnfParser(std::string_view text) : text_(text, "the grammar", kMaxGbnf) {}

  std::vector<NamedRule> parse() {
    for (blank(true); !text_.at_end(); blank(true)) definition();
    for (const NamedRule& r : rules_)
      if (!r.defined) {
        text_.go_to(r.place);
        text_.mistake("expected a definition of the rule " + r.name + ", found none");
      }
    return std::move(rules_);
  }

 private:
  /// Skips blanks and comments; with `lines`, also the ends of lines.
  void blank(bool lines) {
    for (;;) {
      text_.take_while([&](char c) { return c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r')); });
      if (text_.peek() != '#') return;
      text_.take_while([](char c) { return c != '\n' && c != '\r'; });
    }
  }

  static bool in_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  }

  RuleId named(std::string_view name, std::size_t place) {
    const auto [it, fresh] = ids_.try_emplace(std::string(name), static_cast<RuleId>(rules_.size()));
    if (fresh) rules_.push_back({.name = std::string(name), .body = {}, .place = place});
    return it->second;
  }

  void definition() {
    const std::size_t place = text_.place();
    const auto name = text_.take_while(in_name);
    if (name.empty()) text_.mistake("expected a rule, as in root ::= \"yes\" | \"no\"");
    const RuleId id = named(name, place);
    blank(false);
    if (!text_.take("::=")) text_.mistake("expected \"::=\" after the name of a rule");
    if (rules_[id].defined) {
      text_.go_to(place);
      text_.mistake("expected one definition of the rule " + std::string(name) + ", found a second");
    }
    rules_[id].defined = true;
    blank(true);
    Expression body = choice(false);
    rules_[id].body = std::move(body);
    if (!text_.at_end() && text_.peek() != '\n' && text_.peek() != '\r') text_.mistake("expected the end of the line");
  }

  Expression choice(bool in_group) {
    if (++nesting_ > kMaxNesting) text_.mistake("expected groups nested at most 200 deep");
    std::vector<Expression> parts;
    for (;;) {
      parts.push_back(sequence(in_group));
      if (!text_.take("|")) break;
      blank(true);
    }
    --nesting_;
    return Expression::choice(std::move(parts));
  }

  Expression sequence(bool in_group) {
    std::vector<Expression> parts;
    while (starts_item()) {
      parts.push_back(item());
      blank(in_group);
      while (repeat(parts.back())) blank(in_group);
    }
    return Expression::sequence(std::move(parts));
  }

  bool starts_item() const {
    const char c = text_.peek();
    if (c == '<' || c == '!') text_.mistake("tokens of a vocabulary are not supported; write their text in quotes");
    if (c == '*' || c == '+' || c == '?' || c == '{') text_.mistake("expected something to repeat");
    return c == '"' || c == '[' || c == '(' || c == '.' || in_name(c);
  }

  Expression item() {
    const std::size_t place = text_.place();
    if (text_.take("\"")) return literal();
    if (text_.take("[")) return char_class();
    if (text_.take(".")) return Expression::chars(CharSet::all());
    if (text_.take("(")) {
      blank(true);
      Expression inner = choice(true);
      if (!text_.take(")")) text_.mistake("expected \")\"");
      return inner;
    }
    return {.kind = Expression::Kind::rule, .rule = named(text_.take_while(in_name), place)};
  }

  bool repeat(Expression& e) {
    int min = 0, max = kUnbounded;
    if (text_.take("*")) {
    } else if (text_.take("+")) {
      min = 1;
    } else if (text_.take("?")) {
      max = 1;
    } else if (text_.take("{")) {
      counts(min, max);
    } else {
      return false;
    }
    if (++repeats_ > kMaxNesting) text_.mistake("expected at most 200 repeats of one thing");
    e = Expression::repeat(std::move(e), min, max);
    if (text_.peek() != '*' && text_.peek() != '+' && text_.peek() != '?' && text_.peek() != '{') repeats_ = 0;
    return true;
  }

  void counts(int& min, int& max) {
    blank(true);
    const auto first = text_.number();
    blank(true);
    if (text_.take(",")) {
      blank(true);
      max = text_.number().value_or(kUnbounded);
      blank(true);
      min = first.value_or(0);
      if (!first && max == kUnbounded) text_.mistake("expected {n}, {n,}, {,m} or {n,m}");
    } else {
      if (!first) text_.mistake("expected {n}, {n,}, {,m} or {n,m}");
      min = max = *first;
    }
    if (!text_.take("}")) text_.mistake("expected \"}\"");
    if (max != kUnbounded && max < min) text_.mistake("expected a repeat whose maximum is not less than its minimum");
    if (std::max(min, max) > kMaxRepeat) text_.mistake("expected a repeat of at most 100000 times");
  }

  Expression literal() {
    std::vector<Expression> parts;
    while (!text_.take("\"")) {
      if (text_.at_end() || text_.peek() == '\n') text_.mistake("expected a quote at the end of the text");
      const char32_t c = character();
      parts.push_back(Expression::chars(CharSet::of(c, c)));
    }
    return Expression::sequence(std::move(parts));
  }

  Expression char_class() {
    const bool negated = text_.take("^");
    CharSet set;
    while (!text_.take("]")) {
      if (text_.at_end()) text_.mistake("expected \"]\"");
      const char32_t first = character();
      char32_t last = first;
      if (text_.peek() == '-' && text_.peek(1) != ']') {
        text_.take("-");
        last = character();
      }
      if (last < first) text_.mistake("expected a range from a lower to a higher character");
      set.add(CharSet::of(first, last));
    }
    return Expression::chars(negated ? ~set : set);
  }

  char32_t character() {
    const char32_t c = text_.next();
    if (c != '\\') return c;
    const char32_t escape = text_.next();
    switch (escape) {
      case 'x': return text_.hex(2);
      case 'u': return text_.hex(4);
      case 'U': return text_.hex(8);
      case 't': return '\t';
      case 'r': return '\r';
      case 'n': return '\n';
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-': return escape;
      default: text_.mistake("expected one of the escapes \\n \\r \\t \\\\ \\\" \\[ \\] \\xHH \\uHHHH \\UHHHHHHHH");
    }
  }

  PatternText text_;
  std::vector<NamedRule> rules_;
  std::map<std::string, RuleId, std::less<>> ids_;
  int nesting_ = 0, repeats_ = 0;
};

/// Puts the bodies of small rules that call no others in place of their calls: a rule for a character or for blanks
/// would otherwise end inside most tokens, and masks of states in it could not be shared.
class Inliner {
 public:
  explicit Inliner(std::vector<NamedRule>& rules) : rules_(rules) {}

  void run() {
    // Each pass makes leaves of the rules that call only leaves.
    constexpr int kPasses = 4;
    for (int pass = 0; pass < kPasses; ++pass) {
      std::vector<bool> leaf;
      for (const auto& r : rules_) leaf.push_back(size(r.body) <= kSmall && !calls(r.body));
      bool changed = false;
      for (auto& r : rules_) changed |= replace(r.body, leaf);
      if (!changed) return;
    }
  }

 private:
  static bool calls(const Expression& e) {
    return e.kind == Expression::Kind::rule || std::any_of(e.parts.begin(), e.parts.end(), calls);
  }
  bool replace(Expression& e, const std::vector<bool>& leaf) {
    if (e.kind == Expression::Kind::rule) {
      if (!leaf[e.rule] || (added_ += kSmall) > kMost) return false;
      e = Expression(rules_[e.rule].body);
      return true;
    }
    bool changed = false;
    for (auto& part : e.parts) changed |= replace(part, leaf);
    return changed;
  }

  static constexpr std::size_t kSmall = 40, kMost = 100'000;  // nodes
  std::vector<NamedRule>& rules_;
  std::size_t added_ = 0;
};

}  // namespace

std::unique_ptr<const Rules> rules_of_gbnf(std::string_view text) {
  auto rules = GbnfParser(text).parse();
  const auto root = std::find_if(rules.begin(), rules.end(), [](const auto& r) { return r.name == "root"; });
  require(root != rules.end(), "grammar", "the grammar: expected a rule \"root\", found none");
  Inliner(rules).run();
  Builder builder;
  builder.set_place("the grammar: ");
  for (const auto& r : rules) builder.rule("the rule " + r.name);
  for (RuleId id = 0; id < rules.size(); ++id)
    build(builder, rules[id].body, builder[id].start, builder[id].end, Encoding::utf8);
  return builder.finish(static_cast<RuleId>(root - rules.begin()));
}

}  // namespace hpcdl::infer::grammar

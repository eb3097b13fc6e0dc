#include "hpcdl/io/jinja/parser.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/io/jinja/convert.h"
#include "hpcdl/io/jinja/lexer.h"

namespace hpcdl::io::jinja {
namespace {

using Words = std::initializer_list<std::string_view>;

class Parser {
 public:
  Parser(std::vector<Token> tokens, std::string_view name) : tokens_(std::move(tokens)), name_(name) {}

  Body parse() { return body({}); }

 private:
  const Token& now() const { return tokens_[at_]; }
  const Token& take() { return tokens_[at_ < tokens_.size() - 1 ? at_++ : at_]; }
  int line() const { return now().line; }
  [[noreturn]] void fail(std::string_view what) const { hpcdl::fail("io", "{}, line {}: {}", name_, line(), what); }

  bool is(TokenKind kind, std::string_view text) const { return now().kind == kind && now().text == text; }
  bool sign(std::string_view s) const { return is(TokenKind::sign, s); }
  bool word(std::string_view w) const { return is(TokenKind::name, w); }
  bool word(Words words) const {
    return std::any_of(words.begin(), words.end(), [&](auto w) { return word(w); });
  }
  bool skip_sign(std::string_view s) { return sign(s) && (take(), true); }
  bool skip_word(std::string_view w) { return word(w) && (take(), true); }

  std::string found() const {
    switch (now().kind) {
      case TokenKind::print_end: return "}}";
      case TokenKind::tag_end: return "%}";
      case TokenKind::end: return "the end";
      case TokenKind::string: return "a string";
      default: return fmt::format("'{}'", now().text);
    }
  }
  [[noreturn]] void expected(std::string_view what) const { fail(fmt::format("expected {}, found {}", what, found())); }
  void need_sign(std::string_view s) {
    if (!skip_sign(s)) expected(fmt::format("'{}'", s));
  }
  void need_tag_end() {
    if (now().kind != TokenKind::tag_end) expected("%}");
    take();
  }
  std::string need_name(std::string_view what) {
    if (now().kind != TokenKind::name) expected(what);
    return take().text;
  }

  /// Bounds the nesting of the source, and with it the stack that parsing and running need.
  class Level {
   public:
    explicit Level(Parser& p) : p_(p) {
      if (++p_.depth_ > kMaxDepth) p_.fail("expressions or statements are nested too deeply");
    }
    ~Level() { --p_.depth_; }
    Level(const Level&) = delete;

   private:
    static constexpr int kMaxDepth = 100;
    Parser& p_;
  };

  // Statements

  /// Statements up to a tag of `ends`, whose name is the next token then; with none, up to the end of the source.
  Body body(Words ends) {
    const Level level(*this);
    Body out;
    while (true) {
      const Token& t = take();
      if (t.kind == TokenKind::text) {
        out.push_back(std::make_unique<PlainText>(t.line, t.text));
      } else if (t.kind == TokenKind::print_begin) {
        out.push_back(std::make_unique<Print>(t.line, tuple()));
        if (now().kind != TokenKind::print_end) expected("}}");
        take();
      } else if (t.kind == TokenKind::tag_begin) {
        if (now().kind != TokenKind::name) expected("the name of a tag");
        if (word(ends)) return out;
        out.push_back(statement());
      } else {
        if (ends.size() > 0) expected(fmt::format("{{% {} %}}", *(ends.end() - 1)));
        return out;
      }
    }
  }

  Body block(std::string_view end) {
    need_tag_end();
    Body out = body({end});
    take();
    need_tag_end();
    return out;
  }

  StatementPtr statement() {
    const int at = line();
    const std::string tag = now().text;
    using Parse = StatementPtr (Parser::*)(int);
    static constexpr std::pair<std::string_view, Parse> kTags[] = {
        {"if", &Parser::if_tag},      {"for", &Parser::for_tag},
        {"set", &Parser::set_tag},    {"macro", &Parser::macro_tag},
        {"call", &Parser::call_tag},  {"filter", &Parser::filter_tag},
        {"with", &Parser::with_tag},  {"generation", &Parser::generation_tag},
        {"break", &Parser::jump_tag}, {"continue", &Parser::jump_tag}};
    for (const auto& [name, parse] : kTags) {
      if (tag != name) continue;
      take();
      return (this->*parse)(at);
    }
    if (tag.starts_with("end") || tag == "else" || tag == "elif") fail(fmt::format("{{% {} %}} has no beginning", tag));
    fail(fmt::format("the tag {{% {} %}} is not supported", tag));
  }

  StatementPtr if_tag(int at) {
    auto out = std::make_unique<If>(at);
    do {
      ExpressionPtr test = tuple(false);
      need_tag_end();
      out->branches.emplace_back(std::move(test), body({"elif", "else", "endif"}));
    } while (take().text == "elif");
    if (tokens_[at_ - 1].text == "else") {
      need_tag_end();
      out->otherwise = body({"endif"});
      take();
    }
    need_tag_end();
    return out;
  }

  StatementPtr for_tag(int at) {
    auto out = std::make_unique<For>(at);
    out->target = target(false);
    if (!skip_word("in")) expected("'in'");
    out->items = tuple(false);
    if (skip_word("if")) out->test = expression();
    if (word("recursive")) fail("loops that are `recursive` are not supported");
    need_tag_end();
    ++loops_;
    out->body = body({"else", "endfor"});
    --loops_;
    if (take().text == "else") {
      need_tag_end();
      out->otherwise = body({"endfor"});
      take();
    }
    need_tag_end();
    return out;
  }

  StatementPtr set_tag(int at) {
    Target to = target(true);
    if (skip_sign("=")) {
      auto out = std::make_unique<Set>(at);
      out->target = std::move(to);
      out->value = tuple();
      need_tag_end();
      return out;
    }
    auto out = std::make_unique<TextBlock>(at);
    out->target = std::make_unique<Target>(std::move(to));
    while (skip_sign("|")) out->filters.push_back(filter());
    out->body = block("endset");
    return out;
  }

  StatementPtr filter_tag(int at) {
    auto out = std::make_unique<TextBlock>(at);
    do out->filters.push_back(filter());
    while (skip_sign("|"));
    out->body = block("endfilter");
    return out;
  }

  StatementPtr macro_tag(int at) {
    auto out = std::make_unique<Macro>(at);
    out->name = need_name("the name of a macro");
    signature(*out);
    macro_body(*out, "endmacro");
    return out;
  }

  StatementPtr call_tag(int at) {
    auto out = std::make_unique<CallBlock>(at);
    auto caller = std::make_unique<Macro>(at);
    caller->name = "caller";
    if (sign("(")) signature(*caller);
    out->call = expression();
    if (!dynamic_cast<const Call*>(out->call.get())) fail("{% call %} needs a call of a macro");
    macro_body(*caller, "endcall");
    out->caller = std::move(caller);
    return out;
  }

  void signature(Macro& macro) {
    need_sign("(");
    while (!skip_sign(")")) {
      if (!macro.parameters.empty()) need_sign(",");
      macro.parameters.push_back(need_name("the name of a parameter"));
      if (skip_sign("=")) macro.defaults.push_back(expression());
      else if (!macro.defaults.empty()) fail("a parameter without a default comes after one with a default");
    }
  }

  void macro_body(Macro& macro, std::string_view end) {
    Macro* const outer = std::exchange(macro_, &macro);
    const int loops = std::exchange(loops_, 0);
    macro.body = block(end);
    macro_ = outer;
    loops_ = loops;
  }

  StatementPtr with_tag(int at) {
    auto out = std::make_unique<With>(at);
    while (now().kind != TokenKind::tag_end) {
      if (!out->values.empty()) need_sign(",");
      Target to = target(false);
      need_sign("=");
      out->values.emplace_back(std::move(to), expression());
    }
    out->body = block("endwith");
    return out;
  }

  StatementPtr generation_tag(int at) {
    auto out = std::make_unique<With>(at);
    out->body = block("endgeneration");
    return out;
  }

  StatementPtr jump_tag(int at) {
    const std::string& tag = tokens_[at_ - 1].text;
    if (loops_ == 0) fail(fmt::format("{{% {} %}} stands in no loop", tag));
    const Flow flow = tag == "break" ? Flow::break_loop : Flow::continue_loop;
    need_tag_end();
    return std::make_unique<Jump>(at, flow);
  }

  /// A name, a.b (where `attributes` allows it), or several with commas between, perhaps in brackets.
  Target target(bool attributes) {
    Target out = one_target(attributes);
    if (!sign(",")) return out;
    Target all;
    all.parts.push_back(std::move(out));
    while (skip_sign(",") && now().kind != TokenKind::tag_end && !word("in") && !sign("=") && !sign(")"))
      all.parts.push_back(one_target(false));
    return all;
  }

  Target one_target(bool attributes) {
    const Level level(*this);
    if (skip_sign("(")) {
      Target out = target(false);
      need_sign(")");
      return out;
    }
    Target out{need_name("a name to set"), {}, {}};
    for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"})
      if (out.name == constant) fail(fmt::format("'{}' cannot be set", constant));
    if (attributes && skip_sign(".")) out.attribute = need_name("the name of an attribute");
    return out;
  }

  // Expressions, from the loosest to the tightest

  ExpressionPtr expression() {
    const Level level(*this);
    const int at = line();
    ExpressionPtr out = either();
    for (int n = 0; skip_word("if"); count_operand(n)) {
      auto choice = std::make_unique<Choice>(at);
      choice->then = std::move(out);
      choice->test = either();
      if (skip_word("else")) choice->otherwise = expression();
      out = std::move(choice);
    }
    return out;
  }

  /// An expression, or several with commas between, which make a tuple.
  ExpressionPtr tuple(bool with_choice = true, bool in_brackets = false) {
    const Level level(*this);
    const int at = line();
    const auto ends = [&] {
      return now().kind == TokenKind::print_end || now().kind == TokenKind::tag_end || sign(")");
    };
    std::vector<ExpressionPtr> items;
    bool is_tuple = false;
    while (!ends()) {
      items.push_back(with_choice ? expression() : either());
      if (!skip_sign(",")) break;
      is_tuple = true;
    }
    if (is_tuple || (items.empty() && in_brackets)) return std::make_unique<ListOf>(at, std::move(items), Form::tuple);
    if (items.empty()) expected("an expression");
    return std::move(items.front());
  }

  /// The depth of the tree grows with the number of operands of one chain, so that it is bounded, too.
  void count_operand(int& n) const {
    if (++n > 100) fail("an expression has more than 100 operands in a row; use brackets or {% set %}");
  }

  ExpressionPtr either() {
    const int at = line();
    ExpressionPtr out = both();
    for (int n = 0; skip_word("or"); count_operand(n)) {
      ExpressionPtr right = both();
      out = std::make_unique<Both>(at, std::move(out), std::move(right), false);
    }
    return out;
  }

  ExpressionPtr both() {
    const int at = line();
    ExpressionPtr out = negation();
    for (int n = 0; skip_word("and"); count_operand(n)) {
      ExpressionPtr right = negation();
      out = std::make_unique<Both>(at, std::move(out), std::move(right), true);
    }
    return out;
  }

  ExpressionPtr negation() {
    const Level level(*this);
    const int at = line();
    return skip_word("not") ? std::make_unique<Not>(at, negation()) : comparison();
  }

  ExpressionPtr comparison() {
    const int at = line();
    ExpressionPtr first = sum();
    std::vector<std::pair<std::string, ExpressionPtr>> rest;
    while (true) {
      std::string op;
      for (const std::string_view s : {"==", "!=", "<", "<=", ">", ">="})
        if (sign(s)) op = s;
      if (word("in")) op = "in";
      if (word("not") && tokens_[at_ + 1].kind == TokenKind::name && tokens_[at_ + 1].text == "in") {
        op = "not in";
        take();
      }
      if (op.empty()) break;
      take();
      rest.emplace_back(op, sum());
    }
    if (rest.empty()) return first;
    auto out = std::make_unique<Compare>(at);
    out->first = std::move(first);
    out->rest = std::move(rest);
    return out;
  }

  ExpressionPtr sum() {
    const int at = line();
    ExpressionPtr out = concat();
    for (int n = 0; sign("+") || sign("-"); count_operand(n)) {
      const char op = take().text[0];
      ExpressionPtr right = concat();
      out = std::make_unique<Arithmetic>(at, op, std::move(out), std::move(right));
    }
    return out;
  }

  ExpressionPtr concat() {
    const int at = line();
    std::vector<ExpressionPtr> parts;
    parts.push_back(product());
    while (skip_sign("~")) parts.push_back(product());
    if (parts.size() == 1) return std::move(parts.front());
    return std::make_unique<Concat>(at, std::move(parts));
  }

  ExpressionPtr product() {
    const int at = line();
    ExpressionPtr out = power();
    for (int n = 0; sign("*") || sign("/") || sign("//") || sign("%"); count_operand(n)) {
      const std::string& op = take().text;
      ExpressionPtr right = power();
      out = std::make_unique<Arithmetic>(at, op == "//" ? 'D' : op[0], std::move(out), std::move(right));
    }
    return out;
  }

  ExpressionPtr power() {
    const int at = line();
    ExpressionPtr out = unary(true);
    for (int n = 0; skip_sign("**"); count_operand(n)) {
      ExpressionPtr right = unary(true);
      out = std::make_unique<Arithmetic>(at, 'P', std::move(out), std::move(right));
    }
    return out;
  }

  ExpressionPtr unary(bool with_filters) {
    const Level level(*this);
    const int at = line();
    ExpressionPtr out;
    if (skip_sign("-")) out = std::make_unique<Negative>(at, unary(false));
    else if (skip_sign("+")) out = std::make_unique<Positive>(at, unary(false));
    else out = primary();
    out = postfix(std::move(out));
    return with_filters ? filters(std::move(out)) : std::move(out);
  }

  ExpressionPtr primary() {
    const Token& t = now();
    switch (t.kind) {
      case TokenKind::name: return take(), name(t);
      case TokenKind::string: {
        std::string text;
        while (now().kind == TokenKind::string) text += take().text;
        return std::make_unique<Constant>(t.line, text_value(std::move(text)));
      }
      case TokenKind::integer: {
        std::int64_t v = 0;
        if (std::from_chars(t.text.data(), t.text.data() + t.text.size(), v).ec != std::errc{})
          fail("a number is larger than 64 bits");
        return take(), std::make_unique<Constant>(t.line, Value(v));
      }
      case TokenKind::real: return take(), std::make_unique<Constant>(t.line, Value(std::stod(t.text)));
      default: break;
    }
    if (skip_sign("(")) {
      ExpressionPtr out = tuple(true, true);
      need_sign(")");
      return out;
    }
    if (skip_sign("[")) return list(t.line);
    if (skip_sign("{")) return dict(t.line);
    expected("an expression");
  }

  ExpressionPtr name(const Token& t) {
    if (t.text == "true" || t.text == "True") return std::make_unique<Constant>(t.line, Value(true));
    if (t.text == "false" || t.text == "False") return std::make_unique<Constant>(t.line, Value(false));
    if (t.text == "none" || t.text == "None") return std::make_unique<Constant>(t.line, Value(None{}));
    if (macro_ && t.text == "varargs") macro_->takes_varargs = true;
    if (macro_ && t.text == "kwargs") macro_->takes_kwargs = true;
    if (sign("("))
      for (const std::string_view other : {"cycler", "joiner", "lipsum"})
        if (t.text == other) fail(fmt::format("the function '{}' is not supported", other));
    return std::make_unique<Name>(t.line, t.text);
  }

  ExpressionPtr list(int at) {
    std::vector<ExpressionPtr> items;
    while (!skip_sign("]")) {
      if (!items.empty()) need_sign(",");
      if (skip_sign("]")) break;
      items.push_back(expression());
    }
    return std::make_unique<ListOf>(at, std::move(items), Form::list);
  }

  ExpressionPtr dict(int at) {
    auto out = std::make_unique<DictOf>(at);
    while (!skip_sign("}")) {
      if (!out->items.empty()) need_sign(",");
      if (skip_sign("}")) break;
      ExpressionPtr key = expression();
      need_sign(":");
      out->items.emplace_back(std::move(key), expression());
    }
    return out;
  }

  ExpressionPtr postfix(ExpressionPtr out) {
    for (int n = 0;; count_operand(n)) {
      if (sign(".") || sign("[")) out = member(std::move(out));
      else if (sign("(")) out = call(std::move(out));
      else return out;
    }
  }

  ExpressionPtr filters(ExpressionPtr out) {
    for (int n = 0;; count_operand(n)) {
      if (skip_sign("|")) {
        auto f = filter();
        f->operand = std::move(out);
        out = std::move(f);
      } else if (word("is")) {
        out = test(std::move(out));
      } else if (sign("(")) {
        out = call(std::move(out));
      } else {
        return out;
      }
    }
  }

  ExpressionPtr member(ExpressionPtr object) {
    const int at = line();
    if (skip_sign(".")) {
      if (now().kind == TokenKind::name) return std::make_unique<Attribute>(at, std::move(object), take().text);
      if (now().kind != TokenKind::integer) expected("a name or a number after '.'");
      auto out = std::make_unique<Subscript>(at);
      out->object = std::move(object);
      out->key = primary();
      return out;
    }
    take();
    ExpressionPtr parts[3];
    int part = 0;
    bool sliced = false;
    while (!sign("]")) {
      if (skip_sign(":")) {
        sliced = true;
        if (++part > 2) fail("a slice has more than three parts");
        continue;
      }
      if (parts[part]) expected("']'");
      parts[part] = expression();
    }
    take();
    if (sliced) {
      auto out = std::make_unique<Slice>(at);
      out->object = std::move(object);
      out->begin = std::move(parts[0]);
      out->end = std::move(parts[1]);
      out->step = std::move(parts[2]);
      return out;
    }
    if (!parts[0]) expected("an index");
    auto out = std::make_unique<Subscript>(at);
    out->object = std::move(object);
    out->key = std::move(parts[0]);
    return out;
  }

  ExpressionPtr call(ExpressionPtr function) {
    auto out = std::make_unique<Call>(line());
    out->function = std::move(function);
    out->args = arguments();
    return out;
  }

  ArgumentList arguments() {
    ArgumentList out;
    need_sign("(");
    for (bool first = true; !skip_sign(")"); first = false) {
      if (!first) need_sign(",");
      if (skip_sign(")")) break;
      if (sign("**")) fail("** in a call is not supported");
      const bool named =
          now().kind == TokenKind::name && tokens_[at_ + 1].kind == TokenKind::sign && tokens_[at_ + 1].text == "=";
      if (skip_sign("*")) {
        out.more_positional = expression();
      } else if (named) {
        std::string key = take().text;
        take();
        out.named.emplace_back(std::move(key), expression());
      } else {
        if (!out.named.empty()) fail("an argument without a name comes after one with a name");
        out.positional.push_back(expression());
      }
    }
    return out;
  }

  std::unique_ptr<FilterOf> filter() {
    auto out = std::make_unique<FilterOf>(line());
    out->name = need_name("the name of a filter");
    out->filter = find_filter(out->name);
    if (!out->filter) fail(fmt::format("the filter '{}' is not supported", out->name));
    if (sign("(")) out->args = arguments();
    return out;
  }

  ExpressionPtr test(ExpressionPtr operand) {
    auto out = std::make_unique<TestOf>(line());
    take();
    const int at = line();
    const bool negated = skip_word("not");
    out->name = need_name("the name of a test");
    out->test = find_test(out->name);
    if (!out->test) fail(fmt::format("the test '{}' is not supported", out->name));
    out->operand = std::move(operand);
    const TokenKind kind = now().kind;
    const bool value =
        kind == TokenKind::string || kind == TokenKind::integer || kind == TokenKind::real || sign("[") || sign("{");
    if (sign("(")) {
      out->args = arguments();
    } else if (value || (kind == TokenKind::name && !word({"else", "or", "and"}))) {
      if (word("is")) fail("tests follow one another; put brackets around the first");
      const Level level(*this);
      out->args.positional.push_back(postfix(primary()));
    }
    if (negated) return std::make_unique<Not>(at, std::move(out));
    return out;
  }

  std::vector<Token> tokens_;
  std::string_view name_;
  std::size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
  Macro* macro_ = nullptr;
};

}  // namespace

Program::Program(std::string_view source, std::string_view name) : name_(name) {
  body_ = Parser(tokenize(source, name_), name_).parse();
}

std::string Program::render(const nlohmann::ordered_json& variables,
                            const std::vector<std::pair<std::string, std::string>>& more, std::time_t now) const {
  require(variables.is_object(), "io", "{}: its variables are no object", name_);
  Run run(name_, now, {});
  std::string out;
  run.out = &out;
  Frame& frame = run.new_frame(nullptr);
  run.frame = &frame;
  set_globals(frame);
  for (const auto& [key, text] : more) frame.set(key, run.text(text));
  for (const auto& [key, value] : variables.items()) frame.set(key, from_ordered_json(run, value));
  run_body(run, body_);
  return out;
}

}  // namespace hpcdl::io::jinja

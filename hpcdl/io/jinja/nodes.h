#pragma once
// The syntax tree of a template. Expressions are evaluated, and statements are executed.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/io/jinja/call.h"

namespace hpcdl::io::jinja {

struct Expression {
  explicit Expression(int at) : line(at) {}
  virtual ~Expression() = default;
  /// Evaluates with the depth and the line kept.
  Value value(Run& run) const;

  const int line;

 protected:
  virtual Value evaluate(Run& run) const = 0;
};
using ExpressionPtr = std::unique_ptr<const Expression>;

/// What a loop statement tells the one around it.
enum class Flow { next, break_loop, continue_loop };

struct Statement {
  explicit Statement(int at) : line(at) {}
  virtual ~Statement() = default;
  Flow run(Run& run) const;

  const int line;

 protected:
  virtual Flow execute(Run& run) const = 0;
};
using StatementPtr = std::unique_ptr<const Statement>;
using Body = std::vector<StatementPtr>;
Flow run_body(Run& run, const Body& body);

/// Where a value goes: a name, space.name, or a tuple of targets.
struct Target {
  std::string name, attribute;
  std::vector<Target> parts;  // of a tuple
  void assign(Run& run, const Value& value) const;
};

struct ArgumentList {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more_positional;  // *args
  Arguments evaluate(Run& run, std::string_view callee) const;
};

struct Constant : Expression {
  Constant(int at, Value v) : Expression(at), held(std::move(v)) {}
  Value held;
  Value evaluate(Run&) const override { return held; }
};

struct Name : Expression {
  Name(int at, std::string n) : Expression(at), name(std::move(n)) {}
  std::string name;
  Value evaluate(Run& run) const override;
};

struct ListOf : Expression {
  ListOf(int at, std::vector<ExpressionPtr> all, Form f) : Expression(at), items(std::move(all)), form(f) {}
  std::vector<ExpressionPtr> items;
  Form form;
  Value evaluate(Run& run) const override;
};

struct DictOf : Expression {
  using Expression::Expression;
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> items;
  Value evaluate(Run& run) const override;
};

struct Negative : Expression {
  Negative(int at, ExpressionPtr e) : Expression(at), operand(std::move(e)) {}
  ExpressionPtr operand;
  Value evaluate(Run& run) const override { return negative(run, operand->value(run)); }
};

struct Positive : Expression {
  Positive(int at, ExpressionPtr e) : Expression(at), operand(std::move(e)) {}
  ExpressionPtr operand;
  Value evaluate(Run& run) const override;
};

struct Not : Expression {
  Not(int at, ExpressionPtr e) : Expression(at), operand(std::move(e)) {}
  ExpressionPtr operand;
  Value evaluate(Run& run) const override { return Value(!truth(operand->value(run))); }
};

/// `and`, `or`: the value that decides.
struct Both : Expression {
  Both(int at, ExpressionPtr a, ExpressionPtr b, bool is_and)
      : Expression(at), left(std::move(a)), right(std::move(b)), all(is_and) {}
  ExpressionPtr left, right;
  bool all;
  Value evaluate(Run& run) const override;
};

struct Arithmetic : Expression {
  Arithmetic(int at, char o, ExpressionPtr a, ExpressionPtr b)
      : Expression(at), op(o), left(std::move(a)), right(std::move(b)) {}
  char op;
  ExpressionPtr left, right;
  Value evaluate(Run& run) const override;
};

/// a ~ b ~ c.
struct Concat : Expression {
  Concat(int at, std::vector<ExpressionPtr> all) : Expression(at), parts(std::move(all)) {}
  std::vector<ExpressionPtr> parts;
  Value evaluate(Run& run) const override;
};

/// a < b <= c, and `in`, `not in`.
struct Compare : Expression {
  using Expression::Expression;
  ExpressionPtr first;
  std::vector<std::pair<std::string, ExpressionPtr>> rest;
  Value evaluate(Run& run) const override;
};

/// then if test else otherwise.
struct Choice : Expression {
  using Expression::Expression;
  ExpressionPtr test, then, otherwise;
  Value evaluate(Run& run) const override;
};

struct Attribute : Expression {
  Attribute(int at, ExpressionPtr e, std::string n) : Expression(at), object(std::move(e)), name(std::move(n)) {}
  ExpressionPtr object;
  std::string name;
  Value evaluate(Run& run) const override { return attribute(run, object->value(run), name); }
};

struct Subscript : Expression {
  using Expression::Expression;
  ExpressionPtr object, key;
  Value evaluate(Run& run) const override;
};

struct Slice : Expression {
  using Expression::Expression;
  ExpressionPtr object, begin, end, step;
  Value evaluate(Run& run) const override;
};

struct Call : Expression {
  using Expression::Expression;
  ExpressionPtr function;
  ArgumentList args;
  Value evaluate(Run& run) const override;
};

struct FilterOf : Expression {
  using Expression::Expression;
  ExpressionPtr operand;  // none: the text of a block, given to apply()
  std::string name;
  Filter filter = nullptr;
  ArgumentList args;
  Value evaluate(Run& run) const override { return apply(run, operand->value(run)); }
  Value apply(Run& run, const Value& value) const;
};

struct TestOf : Expression {
  using Expression::Expression;
  ExpressionPtr operand;
  std::string name;
  Test test = nullptr;
  ArgumentList args;
  Value evaluate(Run& run) const override;
};

struct Print : Statement {
  Print(int at, ExpressionPtr e) : Statement(at), expression(std::move(e)) {}
  ExpressionPtr expression;
  Flow execute(Run& run) const override;
};

struct PlainText : Statement {
  PlainText(int at, std::string t) : Statement(at), text(std::move(t)) {}
  std::string text;
  Flow execute(Run& run) const override { return run.print(text), Flow::next; }
};

struct If : Statement {
  using Statement::Statement;
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  Body otherwise;
  Flow execute(Run& run) const override;
};

struct For : Statement {
  using Statement::Statement;
  Target target;
  ExpressionPtr items, test;
  Body body, otherwise;
  Flow execute(Run& run) const override;
};

struct Set : Statement {
  using Statement::Statement;
  Target target;
  ExpressionPtr value;
  Flow execute(Run& run) const override;
};

/// {% set x %}...{% endset %} and {% filter f %}...{% endfilter %}: the text of a block, filtered.
struct TextBlock : Statement {
  using Statement::Statement;
  std::unique_ptr<Target> target;  // none: printed
  std::vector<std::unique_ptr<const FilterOf>> filters;
  Body body;
  Flow execute(Run& run) const override;
};

/// {% with a = 1 %}, and {% generation %} without names.
struct With : Statement {
  using Statement::Statement;
  std::vector<std::pair<Target, ExpressionPtr>> values;
  Body body;
  Flow execute(Run& run) const override;
};

struct Jump : Statement {
  Jump(int at, Flow f) : Statement(at), flow(f) {}
  Flow flow;
  Flow execute(Run&) const override { return flow; }
};

struct Macro : Statement {
  using Statement::Statement;
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  bool takes_varargs = false, takes_kwargs = false;
  Body body;
  Flow execute(Run& run) const override;
  Value function(Run& run) const;

 private:
  Value call(Run& run, Frame* outer, Arguments& args) const;
};

/// {% call(x) f() %}: f is called with the block as `caller`.
struct CallBlock : Statement {
  using Statement::Statement;
  ExpressionPtr call;  // a Call
  std::unique_ptr<const Macro> caller;
  Flow execute(Run& run) const override;
};

}  // namespace hpcdl::io::jinja

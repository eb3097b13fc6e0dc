#include "hpcdl/io/jinja/nodes.h"

namespace hpcdl::io::jinja {

Value Expression::value(Run& run) const {
  const Run::Level level(run);
  run.line = line;
  run.steps();
  return evaluate(run);
}

Arguments ArgumentList::evaluate(Run& run, std::string_view callee) const {
  Arguments out{callee, {}, {}};
  for (const auto& e : positional) out.positional.push_back(e->value(run));
  if (more_positional)
    for (Value& v : items_of(run, more_positional->value(run))) out.positional.push_back(std::move(v));
  for (const auto& [name, e] : named) out.named.emplace_back(name, e->value(run));
  return out;
}

Value Name::evaluate(Run& run) const {
  const Value* found = run.frame->find(name);
  return found ? *found : missing(name);
}

Value ListOf::evaluate(Run& run) const {
  std::vector<Value> out;
  for (const auto& e : items) out.push_back(e->value(run));
  return run.list(std::move(out), form);
}

Value DictOf::evaluate(Run& run) const {
  std::vector<std::pair<Value, Value>> out;
  for (const auto& [k, v] : items) {
    Value key = k->value(run), held = v->value(run);
    if (key.dict() || (key.list() && key.list()->form != Form::tuple)) run.fail("a {} cannot be a key", kind_of(key));
    Value* same = nullptr;
    for (auto& [other, value] : out)
      if (equal(run, other, key)) same = &value;
    if (same) *same = std::move(held);
    else out.emplace_back(std::move(key), std::move(held));
  }
  return run.dict(std::move(out));
}

Value Positive::evaluate(Run& run) const {
  const Value v = operand->value(run);
  need_number(run, v, "the value after `+`");
  return v.boolean() ? Value(std::int64_t{*v.boolean()}) : v;
}

Value Both::evaluate(Run& run) const {
  Value first = left->value(run);
  return truth(first) == all ? right->value(run) : first;
}

Value Arithmetic::evaluate(Run& run) const {
  const Value a = left->value(run), b = right->value(run);
  run.line = line;
  return arithmetic(run, op, a, b);
}

Value Concat::evaluate(Run& run) const {
  std::string out;
  for (const auto& e : parts) out += str(run, e->value(run));
  return run.text(std::move(out));
}

Value Compare::evaluate(Run& run) const {
  Value a = first->value(run);
  for (const auto& [op, e] : rest) {
    Value b = e->value(run);
    run.line = line;
    bool holds = false;
    if (op == "==") holds = equal(run, a, b);
    else if (op == "!=") holds = !equal(run, a, b);
    else if (op == "in") holds = contains(run, b, a);
    else if (op == "not in") holds = !contains(run, b, a);
    else if (op == "<") holds = compare(run, a, b) < 0;
    else if (op == "<=") holds = compare(run, a, b) <= 0;
    else if (op == ">") holds = compare(run, a, b) > 0;
    else holds = compare(run, a, b) >= 0;
    if (!holds) return Value(false);
    a = std::move(b);
  }
  return Value(true);
}

Value Choice::evaluate(Run& run) const {
  if (truth(test->value(run))) return then->value(run);
  if (otherwise) return otherwise->value(run);
  return undefined_because("an `if` without `else` was false, so its value is undefined");
}

Value Subscript::evaluate(Run& run) const {
  const Value of = object->value(run), by = key->value(run);
  run.line = line;
  return subscript(run, of, by);
}

Value Slice::evaluate(Run& run) const {
  const auto bound = [&](const ExpressionPtr& e) { return e ? e->value(run) : Value(None{}); };
  const Value of = object->value(run), a = bound(begin), b = bound(end), c = bound(step);
  run.line = line;
  return slice(run, of, a, b, c);
}

Value Call::evaluate(Run& run) const {
  const Value f = function->value(run);
  Arguments arguments = args.evaluate(run, {});
  run.line = line;
  return call(run, f, arguments);
}

Value FilterOf::apply(Run& run, const Value& value) const {
  Arguments arguments = args.evaluate(run, name);
  run.line = line;
  return filter(run, value, arguments);
}

Value TestOf::evaluate(Run& run) const {
  const Value v = operand->value(run);
  Arguments arguments = args.evaluate(run, name);
  run.line = line;
  return Value(test(run, v, arguments));
}

}  // namespace hpcdl::io::jinja

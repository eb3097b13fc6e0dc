#include <algorithm>

#include "hpcdl/io/jinja/nodes.h"

namespace hpcdl::io::jinja {

Flow Statement::run(Run& run) const {
  const Run::Level level(run);
  run.line = line;
  run.steps();
  return execute(run);
}

Flow run_body(Run& run, const Body& body) {
  for (const auto& s : body)
    if (const Flow flow = s->run(run); flow != Flow::next) return flow;
  return Flow::next;
}

void Target::assign(Run& run, const Value& value) const {
  if (!attribute.empty()) {
    const Value* held = run.frame->find(name);
    Namespace* space = held ? held->space() : nullptr;
    if (!space) run.fail("'{}.{}' is set, but '{}' is no namespace()", name, attribute, name);
    const auto found =
        std::find_if(space->values.begin(), space->values.end(), [&](const auto& v) { return v.first == attribute; });
    if (found != space->values.end()) found->second = value;
    else space->values.emplace_back(attribute, value);
    return;
  }
  if (parts.empty()) return run.frame->set(name, value);
  const std::vector<Value> items = items_of(run, value);
  if (items.size() != parts.size()) run.fail("{} values are set from {}", parts.size(), items.size());
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i].assign(run, items[i]);
}

Flow Print::execute(Run& run) const {
  const Value v = expression->value(run);
  if (const std::string* t = v.text()) run.print(*t);
  else run.print(str(run, v));
  return Flow::next;
}

Flow If::execute(Run& run) const {
  for (const auto& [test, body] : branches)
    if (truth(test->value(run))) return run_body(run, body);
  return run_body(run, otherwise);
}

Flow For::execute(Run& run) const {
  std::vector<Value> all = items_of(run, items->value(run));
  if (test) {
    std::vector<Value> kept;
    for (Value& v : all) {
      const Scope scope(run, run.frame);
      target.assign(run, v);
      if (truth(test->value(run))) kept.push_back(std::move(v));
    }
    all = std::move(kept);
  }
  if (all.empty()) {
    const Scope scope(run, run.frame);
    return run_body(run, otherwise);
  }
  Loop* loop = run.new_loop();
  loop->items = std::make_shared<const List>(List{std::move(all)});
  for (const Value& v : loop->items->items) {
    const Scope scope(run, run.frame);
    run.frame->set("loop", Value(loop));
    target.assign(run, v);
    if (run_body(run, body) == Flow::break_loop) break;
    ++loop->index;
  }
  return Flow::next;
}

Flow Set::execute(Run& run) const {
  target.assign(run, value->value(run));
  return Flow::next;
}

Flow TextBlock::execute(Run& run) const {
  Value out;
  Flow flow = Flow::next;
  {
    Capture capture(run);
    const Scope scope(run, run.frame);
    flow = run_body(run, body);
    out = run.text(std::move(capture.text));
  }
  for (const auto& f : filters) out = f->apply(run, out);
  if (target) target->assign(run, out);
  else run.print(str(run, out));
  return flow;
}

Flow With::execute(Run& run) const {
  std::vector<Value> held;
  for (const auto& [target, e] : values) held.push_back(e->value(run));
  const Scope scope(run, run.frame);
  for (std::size_t i = 0; i < values.size(); ++i) values[i].first.assign(run, held[i]);
  return run_body(run, body);
}

Flow Macro::execute(Run& run) const {
  run.frame->set(name, function(run));
  return Flow::next;
}

Value Macro::function(Run& run) const {
  ++run.macros;
  run.steps(50);
  return make_function(name, [this, outer = run.frame](Run& r, Arguments& args) { return call(r, outer, args); });
}

Value Macro::call(Run& run, Frame* outer, Arguments& args) const {
  const int back = run.line;
  const Scope scope(run, outer);
  if (args.positional.size() > parameters.size() && !takes_varargs)
    run.fail("macro '{}' takes at most {} arguments; found {}", name, parameters.size(), args.positional.size());
  std::vector<std::pair<Value, Value>> others;
  for (const auto& [key, v] : args.named) {
    const auto p = std::find(parameters.begin(), parameters.end(), key);
    if (key == "caller") run.frame->set(key, v);
    else if (p == parameters.end() && !takes_kwargs) run.fail("macro '{}' has no parameter '{}'", name, key);
    else if (p == parameters.end()) others.emplace_back(run.text(std::string(key)), v);
    else if (static_cast<std::size_t>(p - parameters.begin()) < args.positional.size())
      run.fail("macro '{}' is given '{}' twice", name, key);
  }
  const std::size_t first_default = parameters.size() - defaults.size();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (const Value* v = args.find(i, parameters[i])) run.frame->set(parameters[i], *v);
    else if (i >= first_default) run.frame->set(parameters[i], defaults[i - first_default]->value(run));
    else run.frame->set(parameters[i], undefined_because("parameter '" + parameters[i] + "' was not provided"));
  }
  if (takes_varargs) {
    std::vector<Value> rest;
    for (std::size_t i = parameters.size(); i < args.positional.size(); ++i) rest.push_back(args.positional[i]);
    run.frame->set("varargs", run.list(std::move(rest), Form::tuple));
  }
  if (takes_kwargs) run.frame->set("kwargs", run.dict(std::move(others)));
  Capture capture(run);
  run_body(run, body);
  run.line = back;
  return run.text(std::move(capture.text));
}

Flow CallBlock::execute(Run& run) const {
  const auto& c = static_cast<const Call&>(*call);
  const Value f = c.function->value(run);
  Arguments args = c.args.evaluate(run, {});
  args.named.emplace_back("caller", caller->function(run));
  const Value out = jinja::call(run, f, args);
  run.print(str(run, out));
  return Flow::next;
}

}  // namespace hpcdl::io::jinja

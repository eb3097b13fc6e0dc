#include "hpcdl/io/jinja/call.h"

#include <algorithm>

namespace hpcdl::io::jinja {
namespace {

constexpr std::int64_t kLongestRange = 100'000;  // as in the sandbox of Jinja

Value range(Run& run, Arguments& args) {
  if (args.positional.empty() || args.positional.size() > 3 || !args.named.empty())
    run.fail("range() needs 1 to 3 integers");
  std::vector<std::int64_t> v;
  for (const Value& a : args.positional) v.push_back(need_whole(run, a, "an argument of range()"));
  const std::int64_t begin = v.size() > 1 ? v[0] : 0, end = v.size() > 1 ? v[1] : v[0], step = v.size() > 2 ? v[2] : 1;
  if (step == 0) run.fail("the step of range() is 0");
  std::vector<Value> items;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (static_cast<std::int64_t>(items.size()) == kLongestRange)
      run.fail("range() is longer than {} numbers", kLongestRange);
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return run.list(std::move(items));
}

Value namespace_of(Run& run, Arguments& args) {
  Namespace* space = run.new_namespace();
  if (args.positional.size() > 1) run.fail("namespace() takes names and values, or one dict");
  if (!args.positional.empty()) {
    const Dict* dict = args.positional[0].dict();
    if (!dict) run.fail("namespace() takes names and values, or one dict");
    for (const auto& [k, v] : dict->items) space->values.emplace_back(need_text(run, k, "a name"), v);
  }
  for (auto& [name, value] : args.named) space->values.emplace_back(name, value);
  return Value(space);
}

Value dict_of(Run& run, Arguments& args) {
  std::vector<std::pair<Value, Value>> items;
  if (args.positional.size() > 1) run.fail("dict() takes at most one value without a name");
  if (!args.positional.empty()) {
    const Dict* dict = args.positional[0].dict();
    if (!dict) run.fail("dict() of a {} is not supported", kind_of(args.positional[0]));
    items = dict->items;
  }
  for (auto& [name, value] : args.named) {
    const auto found = std::find_if(items.begin(), items.end(),
                                    [&, n = name](const auto& i) { return i.first.text() && *i.first.text() == n; });
    if (found != items.end()) found->second = value;
    else items.emplace_back(run.text(std::string(name)), value);
  }
  return run.dict(std::move(items));
}

Value raise_exception(Run& run, Arguments& args) {
  const std::string message = args.positional.empty() ? "" : str(run, args.positional[0]);
  run.fail("the template refuses: {}", message);
}

Value strftime_now(Run& run, Arguments& args) {
  args.expect(run, {"format"});
  const std::string& format = need_text(run, args.need(run, 0, "format"), "the format of strftime_now()");
  const std::time_t now = run.now();
  std::tm tm{};
  localtime_r(&now, &tm);
  if (format.empty()) return run.text("");
  run.bytes(16 * format.size());
  std::string out(format.size() * 16 + 256, '\0');  // %c is the longest
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &tm));
  return run.text(std::move(out));
}

}  // namespace

const Value* Arguments::find(std::size_t index, std::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [key, value] : named)
    if (key == name) return &value;
  return nullptr;
}

const Value& Arguments::need(Run& run, std::size_t index, std::string_view name) const {
  const Value* value = find(index, name);
  if (!value) run.fail("{} needs the argument '{}'", callee, name);
  return *value;
}

Value Arguments::get(std::size_t index, std::string_view name, Value otherwise) const {
  const Value* value = find(index, name);
  return value ? *value : otherwise;
}

void Arguments::expect(Run& run, std::initializer_list<std::string_view> names) const {
  if (positional.size() > names.size())
    run.fail("{} takes at most {} arguments; found {}", callee, names.size(), positional.size());
  for (const auto& [key, value] : named)
    if (std::find(names.begin(), names.end(), key) == names.end()) run.fail("{} has no argument '{}'", callee, key);
}

Value call(Run& run, const Value& function, Arguments& args) {
  const Run::Level level(run);
  run.steps();
  need_defined(run, function);
  const Function* f = function.function();
  if (!f) run.fail("a {} is called; only functions can be", kind_of(function));
  args.callee = f->name;
  return f->call(run, args);
}

Value make_function(std::string name, std::function<Value(Run&, Arguments&)> f) {
  return Value(std::make_shared<const Function>(Function{std::move(name), std::move(f)}));
}

void set_globals(Frame& frame) {
  static const std::vector<Value> kAll = {
      make_function("range", range), make_function("namespace", namespace_of), make_function("dict", dict_of),
      make_function("raise_exception", raise_exception), make_function("strftime_now", strftime_now)};
  for (const Value& f : kAll) frame.set(f.function()->name, f);
}

}  // namespace hpcdl::io::jinja

#pragma once
// Arguments of calls, filters and tests, and the functions that templates find by name.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hpcdl/io/jinja/operators.h"

namespace hpcdl::io::jinja {

struct Arguments {
  std::string_view callee;
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;

  /// The argument at `index`, or of that name; nullptr if there is neither.
  const Value* find(std::size_t index, std::string_view name) const;
  const Value& need(Run& run, std::size_t index, std::string_view name) const;
  Value get(std::size_t index, std::string_view name, Value otherwise) const;
  /// Fails for arguments beyond `names`, which list the parameters in order.
  void expect(Run& run, std::initializer_list<std::string_view> names) const;
};

/// A filter or a test: its value, and the arguments in brackets.
using Filter = Value (*)(Run& run, const Value& value, Arguments& args);
using Test = bool (*)(Run& run, const Value& value, Arguments& args);

/// nullptr for a name that is not supported.
Filter find_filter(std::string_view name);
Filter find_text_filter(std::string_view name);
Filter find_list_filter(std::string_view name);
Test find_test(std::string_view name);
/// The method of a string, list or dict; none if Python has none of that name, and undefined for those that change the
/// value. Fails for those that Python has and this subset lacks.
std::optional<Value> find_method(Run& run, const Value& value, std::string_view name);

Value call(Run& run, const Value& function, Arguments& args);
Value make_function(std::string name, std::function<Value(Run&, Arguments&)> f);
/// Sets range, namespace, dict, raise_exception and strftime_now.
void set_globals(Frame& frame);

/// json.dumps(value, ensure_ascii, indent, separators, sort_keys).
Value to_json(Run& run, const Value& value, Arguments& args);
Value from_json(Run& run, const Value& value, Arguments& args);
std::string format_percent(Run& run, std::string_view format, const Value& values);
std::string format_braces(Run& run, std::string_view format, const Arguments& args);

}  // namespace hpcdl::io::jinja

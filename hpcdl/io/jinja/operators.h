#pragma once
// What Python does with values: text, comparison, arithmetic, indices.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/io/jinja/run.h"

namespace hpcdl::io::jinja {

/// str(value), as a template prints it.
std::string str(Run& run, const Value& value);
/// repr(value), as in a printed list.
std::string repr(Run& run, const Value& value);
/// A float as Python writes it: 1.0, 1e-05, 1e+16, inf, nan.
std::string real_text(double value);

bool equal(Run& run, const Value& a, const Value& b);
/// Negative, 0 or positive; fails for values without an order.
int compare(Run& run, const Value& a, const Value& b);
/// `item in container`.
bool contains(Run& run, const Value& container, const Value& item);
const Value* find_key(Run& run, const Dict& dict, const Value& key);

/// What a `for` walks over: items of a list, keys of a dict, characters of a string; nothing for undefined.
std::vector<Value> items_of(Run& run, const Value& value);
/// len(value).
std::int64_t length_of(Run& run, const Value& value);

/// `op` is one of + - * / % P (power) D (floor division).
Value arithmetic(Run& run, char op, const Value& a, const Value& b);
Value negative(Run& run, const Value& value);

/// value.name: a method first, then a key.
Value attribute(Run& run, const Value& value, std::string_view name);
/// value[key]: a key first, then a method.
Value subscript(Run& run, const Value& value, const Value& key);
/// value[begin:end:step]; each part may be none.
Value slice(Run& run, const Value& value, const Value& begin, const Value& end, const Value& step);

/// Fails with what was expected unless the value is of the kind.
const std::string& need_text(Run& run, const Value& value, std::string_view what);
std::int64_t need_whole(Run& run, const Value& value, std::string_view what);
double need_number(Run& run, const Value& value, std::string_view what);
/// Fails for undefined values, by their names.
void need_defined(Run& run, const Value& value);

}  // namespace hpcdl::io::jinja

#include "hpcdl/io/jinja/operators.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "hpcdl/io/jinja/call.h"
#include "hpcdl/io/jinja/text.h"

namespace hpcdl::io::jinja {
namespace {

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();

double real_of(const Value& v) {
  if (const auto* r = v.real()) return *r;
  if (const auto* w = v.whole()) return static_cast<double>(*w);
  return *v.boolean() ? 1 : 0;
}

std::int64_t whole_of(const Value& v) { return v.whole() ? *v.whole() : std::int64_t{*v.boolean()}; }

bool all_equal(Run& run, const std::vector<Value>& a, const std::vector<Value>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!equal(run, a[i], b[i])) return false;
  return true;
}

int compare_lists(Run& run, const List& a, const List& b) {
  for (std::size_t i = 0; i < std::min(a.items.size(), b.items.size()); ++i)
    if (!equal(run, a.items[i], b.items[i])) return compare(run, a.items[i], b.items[i]);
  return a.items.size() < b.items.size() ? -1 : a.items.size() > b.items.size();
}

Value add_texts(Run& run, const Value& a, const Value& b) {
  const std::string &left = *a.text(), &right = *b.text();
  if (a.safe() == b.safe()) return run.text(left + right, a.safe());
  return run.text(a.safe() ? left + escape_html(right) : escape_html(left) + right, true);
}

Value repeat(Run& run, const Value& value, std::int64_t times) {
  times = std::max<std::int64_t>(times, 0);
  const auto charge = [&](std::size_t size) {
    if (size > 0 && times > (std::int64_t{1} << 28) / static_cast<std::int64_t>(size))
      run.fail("a {} is repeated {} times", kind_of(value), times);
    run.steps(static_cast<std::int64_t>(size) * times / 64);
  };
  if (const std::string* text = value.text()) {
    charge(text->size());
    run.bytes(text->size() * static_cast<std::size_t>(times));
    std::string out;
    for (std::int64_t i = 0; i < times && !text->empty(); ++i) out += *text;
    return text_value(std::move(out), value.safe());
  }
  const List& list = *value.list();
  charge(64 * list.items.size());
  std::vector<Value> items;
  for (std::int64_t i = 0; i < times && !list.items.empty(); ++i)
    items.insert(items.end(), list.items.begin(), list.items.end());
  return run.list(std::move(items), list.form);
}

[[noreturn]] void no_operator(Run& run, char op, const Value& a, const Value& b) {
  need_defined(run, a);
  need_defined(run, b);
  const std::string name = op == 'P' ? "**" : op == 'D' ? "//" : std::string(1, op);
  run.fail("{} {} {} is not possible", kind_of(a), name, kind_of(b));
}

double floor_mod(double a, double b) {
  const double r = std::fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

Value whole_power(Run& run, std::int64_t base, std::int64_t exponent) {
  std::int64_t out = 1;
  if (exponent < 0) return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  if (base == 0 || base == 1) return Value(exponent == 0 ? std::int64_t{1} : base);
  if (base == -1) return Value(exponent % 2 == 0 ? std::int64_t{1} : base);
  for (; exponent > 0; --exponent)
    if (__builtin_mul_overflow(out, base, &out)) run.fail("a number is larger than 64 bits");
  return Value(out);
}

Value whole_arithmetic(Run& run, char op, std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  bool over = false;
  switch (op) {
    case '+': over = __builtin_add_overflow(a, b, &out); break;
    case '-': over = __builtin_sub_overflow(a, b, &out); break;
    case '*': over = __builtin_mul_overflow(a, b, &out); break;
    case 'P': return whole_power(run, a, b);
    default: {
      if (b == 0) run.fail("division by zero");
      if (op == '/') return Value(static_cast<double>(a) / static_cast<double>(b));
      if (b == -1) {
        if (op == '%') return Value(std::int64_t{0});
        over = __builtin_sub_overflow(std::int64_t{0}, a, &out);
        break;
      }
      const bool down = a % b != 0 && (a % b < 0) != (b < 0);
      out = op == '%' ? a % b + (down ? b : 0) : a / b - (down ? 1 : 0);
    }
  }
  if (over) run.fail("a number is larger than 64 bits");
  return Value(out);
}

Value real_arithmetic(Run& run, char op, double a, double b) {
  switch (op) {
    case '+': return Value(a + b);
    case '-': return Value(a - b);
    case '*': return Value(a * b);
    case 'P': return Value(std::pow(a, b));
    default: break;
  }
  if (b == 0) run.fail("division by zero");
  if (op == '%') return Value(floor_mod(a, b));
  return Value(op == '/' ? a / b : std::floor(a / b));
}

/// The positions that a slice of Python takes from `length` items.
std::vector<std::int64_t> slice_positions(Run& run, std::int64_t length, const Value& begin, const Value& end,
                                          const Value& step_value) {
  const std::int64_t step = step_value.none() ? 1 : need_whole(run, step_value, "the step of a slice");
  if (step == 0) run.fail("the step of a slice is 0");
  const std::int64_t low = step > 0 ? 0 : -1, high = step > 0 ? length : length - 1;
  const auto clipped = [&](const Value& v, std::int64_t otherwise) {
    if (v.none()) return otherwise;
    std::int64_t i = need_whole(run, v, "a bound of a slice");
    if (i < 0) i = i < -length ? -1 - length : i + length;
    return std::clamp(i, low, high);
  };
  std::int64_t at = clipped(begin, step > 0 ? 0 : length - 1);
  const std::int64_t stop = clipped(end, step > 0 ? length : -1);
  std::vector<std::int64_t> out;
  while (step > 0 ? at < stop : at > stop) {
    out.push_back(at);
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  run.steps(static_cast<std::int64_t>(out.size()));
  return out;
}

Value loop_attribute(Run& run, const Loop& loop, std::string_view name) {
  const auto size = static_cast<std::int64_t>(loop.items->items.size());
  const auto item = [&](std::int64_t i) {
    return i >= 0 && i < size ? loop.items->items[static_cast<std::size_t>(i)] : missing(name);
  };
  if (name == "index") return Value(loop.index + 1);
  if (name == "index0") return Value(loop.index);
  if (name == "revindex") return Value(size - loop.index);
  if (name == "revindex0") return Value(size - loop.index - 1);
  if (name == "first") return Value(loop.index == 0);
  if (name == "last") return Value(loop.index == size - 1);
  if (name == "length") return Value(size);
  if (name == "depth" || name == "depth0") return Value(std::int64_t{name == "depth"});  // no recursive loops
  if (name == "previtem") return item(loop.index - 1);
  if (name == "nextitem") return item(loop.index + 1);
  if (name == "cycle")
    return make_function("loop.cycle", [index = loop.index](Run& r, Arguments& args) {
      if (args.positional.empty()) r.fail("loop.cycle() needs values");
      return args.positional[static_cast<std::size_t>(index) % args.positional.size()];
    });
  if (name == "changed") run.fail("loop.changed() is not supported");
  return missing(name);
}

}  // namespace

void need_defined(Run& run, const Value& value) {
  if (const auto* u = std::get_if<Undefined>(&value.data()))
    run.fail(std::string_view(u->error ? *u->error : "a value is undefined"));
}

const std::string& need_text(Run& run, const Value& value, std::string_view what) {
  need_defined(run, value);
  if (!value.text()) run.fail("{} is a {}; expected a string", what, kind_of(value));
  return *value.text();
}

std::int64_t need_whole(Run& run, const Value& value, std::string_view what) {
  need_defined(run, value);
  if (!value.whole() && !value.boolean()) run.fail("{} is a {}; expected an integer", what, kind_of(value));
  return whole_of(value);
}

double need_number(Run& run, const Value& value, std::string_view what) {
  need_defined(run, value);
  if (!value.number()) run.fail("{} is a {}; expected a number", what, kind_of(value));
  return real_of(value);
}

bool equal(Run& run, const Value& a, const Value& b) {
  run.steps();
  if (a.number() && b.number()) return a.real() || b.real() ? real_of(a) == real_of(b) : whole_of(a) == whole_of(b);
  if (a.data().index() != b.data().index()) return false;
  if (const std::string* t = a.text()) return run.steps(static_cast<std::int64_t>(t->size() / 64)), *t == *b.text();
  if (const List* l = a.list()) {
    const bool same = a.list() == b.list();
    return same || (l->form == b.list()->form && all_equal(run, l->items, b.list()->items));
  }
  if (const Dict* d = a.dict()) {
    if (d->items.size() != b.dict()->items.size()) return false;
    return std::all_of(d->items.begin(), d->items.end(), [&](const auto& item) {
      const Value* other = find_key(run, *b.dict(), item.first);
      return other && equal(run, item.second, *other);
    });
  }
  return a.undefined() || a.none() || (a.function() && a.function() == b.function()) ||
         (a.space() && a.space() == b.space()) || (a.loop() && a.loop() == b.loop());
}

int compare(Run& run, const Value& a, const Value& b) {
  run.steps();
  if (a.number() && b.number()) {
    if (!a.real() && !b.real()) return whole_of(a) < whole_of(b) ? -1 : whole_of(a) > whole_of(b);
    return real_of(a) < real_of(b) ? -1 : real_of(a) > real_of(b);
  }
  // UTF-8 sorts as code points do.
  if (a.text() && b.text())
    return run.steps(static_cast<std::int64_t>(a.text()->size() / 64)), a.text()->compare(*b.text());
  if (a.list() && b.list() && a.list()->form == b.list()->form) return compare_lists(run, *a.list(), *b.list());
  need_defined(run, a);
  need_defined(run, b);
  run.fail("a {} and a {} have no order", kind_of(a), kind_of(b));
}

const Value* find_key(Run& run, const Dict& dict, const Value& key) {
  for (const auto& [k, v] : dict.items)
    if (equal(run, k, key)) return &v;
  return nullptr;
}

bool contains(Run& run, const Value& container, const Value& item) {
  if (const std::string* text = container.text()) {
    run.steps(static_cast<std::int64_t>(text->size() / 64));
    return find_in(*text, need_text(run, item, "the left side of `in` a string")) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) return find_key(run, *dict, item) != nullptr;
  if (const List* list = container.list())
    return std::any_of(list->items.begin(), list->items.end(), [&](const Value& v) { return equal(run, v, item); });
  if (container.undefined()) return false;
  run.fail("`in` needs a string, list or dict; found {}", kind_of(container));
}

std::vector<Value> items_of(Run& run, const Value& value) {
  if (value.undefined()) return {};
  if (const List* list = value.list()) return run.steps(4 * static_cast<std::int64_t>(list->items.size())), list->items;
  std::vector<Value> out;
  if (const Dict* dict = value.dict()) {
    for (const auto& [k, v] : dict->items) out.push_back(k);
    return run.steps(4 * static_cast<std::int64_t>(out.size())), out;
  }
  if (const std::string* text = value.text()) {
    for (std::size_t at = 0; at < text->size();) {
      std::size_t end = at + 1;
      while (end < text->size() && (static_cast<unsigned char>((*text)[end]) & 0xC0) == 0x80) ++end;
      out.push_back(run.text(text->substr(at, end - at), value.safe()));
      at = end;
      run.steps(8);
    }
    return out;
  }
  run.fail("a {} has no items to go through", kind_of(value));
}

std::int64_t length_of(Run& run, const Value& value) {
  if (const std::string* text = value.text())
    return run.steps(1 + static_cast<std::int64_t>(text->size()) / 64), length_of(*text);
  if (const Dict* dict = value.dict()) return static_cast<std::int64_t>(dict->items.size());
  if (const List* list = value.list(); list && list->form != Form::stream)
    return static_cast<std::int64_t>(list->items.size());
  if (value.undefined()) return 0;
  if (value.loop()) return static_cast<std::int64_t>(value.loop()->items->items.size());
  run.fail("a {} has no length", value.list() ? "sequence made by a filter such as map" : kind_of(value));
}

Value arithmetic(Run& run, char op, const Value& a, const Value& b) {
  run.steps();
  if (a.number() && b.number()) {
    if (a.real() || b.real()) return real_arithmetic(run, op, real_of(a), real_of(b));
    return whole_arithmetic(run, op, whole_of(a), whole_of(b));
  }
  if (op == '+' && a.text() && b.text()) return add_texts(run, a, b);
  if (op == '%' && a.text()) return run.text(format_percent(run, *a.text(), b));
  const auto repeatable = [](const Value& v) {
    return v.text() || (v.list() && (v.list()->form == Form::list || v.list()->form == Form::tuple));
  };
  if (op == '+' && repeatable(a) && repeatable(b) && a.list() && b.list() && a.list()->form == b.list()->form) {
    std::vector<Value> items = a.list()->items;
    items.insert(items.end(), b.list()->items.begin(), b.list()->items.end());
    return run.list(std::move(items), a.list()->form);
  }
  const auto counts = [](const Value& v) { return v.number() && !v.real(); };
  if (op == '*' && repeatable(a) && counts(b)) return repeat(run, a, whole_of(b));
  if (op == '*' && counts(a) && repeatable(b)) return repeat(run, b, whole_of(a));
  no_operator(run, op, a, b);
}

Value negative(Run& run, const Value& value) {
  const double number = need_number(run, value, "the value after `-`");
  if (value.real()) return Value(-number);
  if (whole_of(value) == kMin) run.fail("a number is larger than 64 bits");
  return Value(-whole_of(value));
}

Value attribute(Run& run, const Value& value, std::string_view name) {
  run.steps();
  need_defined(run, value);
  if (const Namespace* space = value.space()) {
    for (const auto& [key, held] : space->values)
      if (key == name) return held;
    return missing(name);
  }
  if (const Loop* loop = value.loop()) return loop_attribute(run, *loop, name);
  if (auto method = find_method(run, value, name)) return *method;
  const Value* held = value.dict() ? value.dict()->find(name) : nullptr;
  return held ? *held : missing(name);
}

Value subscript(Run& run, const Value& value, const Value& key) {
  run.steps();
  need_defined(run, value);
  if (const Dict* dict = value.dict()) {
    run.steps(static_cast<std::int64_t>(dict->items.size() / 16));
    const Value* held = key.text() ? dict->find(*key.text()) : find_key(run, *dict, key);
    if (held) return *held;
  }
  const bool ordered = value.text() || (value.list() && value.list()->form <= Form::tuple);
  if (ordered && key.number() && !key.real()) {
    const std::int64_t size = length_of(run, value), i = whole_of(key) < 0 ? whole_of(key) + size : whole_of(key);
    if (i < 0 || i >= size) return missing("item " + std::to_string(whole_of(key)));
    if (const List* list = value.list()) return list->items[static_cast<std::size_t>(i)];
    const std::size_t at = offset_of(*value.text(), i);
    return run.text(value.text()->substr(at, offset_of(std::string_view(*value.text()).substr(at), 1)), value.safe());
  }
  if (key.text()) return attribute(run, value, *key.text());
  return missing(str(run, key));
}

Value slice(Run& run, const Value& value, const Value& begin, const Value& end, const Value& step) {
  need_defined(run, value);
  if (const List* list = value.list(); list && list->form <= Form::tuple) {
    std::vector<Value> items;
    for (const auto i : slice_positions(run, static_cast<std::int64_t>(list->items.size()), begin, end, step))
      items.push_back(list->items[static_cast<std::size_t>(i)]);
    return run.list(std::move(items), list->form);
  }
  if (!value.text()) run.fail("a {} cannot be sliced", kind_of(value));
  const std::string& text = *value.text();
  std::vector<std::size_t> offsets;  // of code points
  for (std::size_t at = 0; at < text.size(); ++at)
    if ((static_cast<unsigned char>(text[at]) & 0xC0) != 0x80) offsets.push_back(at);
  run.steps(static_cast<std::int64_t>(text.size() / 4));
  const auto length = static_cast<std::int64_t>(offsets.size());
  offsets.push_back(text.size());
  std::string out;
  for (const auto i : slice_positions(run, length, begin, end, step)) {
    const auto at = static_cast<std::size_t>(i);
    out.append(text, offsets[at], offsets[at + 1] - offsets[at]);
  }
  return run.text(std::move(out), value.safe());
}

std::string real_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[400];
  const double size = std::fabs(value);
  const bool plain = value == 0 || (size >= 1e-4 && size < 1e16);
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific)
                       .ptr;
  std::string out(buffer, end);
  if (plain && out.find('.') == std::string::npos) out += ".0";
  return out;
}

}  // namespace hpcdl::io::jinja

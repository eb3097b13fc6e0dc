// Filters of lists and dicts.
#include <algorithm>
#include <map>

#include "hpcdl/io/jinja/call.h"
#include "hpcdl/io/jinja/text.h"
#include "hpcdl/io/unicode.h"

namespace hpcdl::io::jinja {
namespace {

/// item.a.b for "a.b", each part a key first; the item itself for none.
Value by_path(Run& run, Value item, const Value& path) {
  if (path.none()) return item;
  if (path.whole()) return subscript(run, item, path);
  for (const std::string_view part : split(run, need_text(run, path, "the attribute"), ".", -1, false)) {
    const bool number =
        !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string_view::npos;
    item = subscript(
        run, item,
        number ? Value(static_cast<std::int64_t>(std::stoll(std::string(part)))) : text_value(std::string(part)));
  }
  return item;
}

/// What sorting and uniqueness compare: text in lower case unless case matters.
Value sort_key(Run& run, const Value& value, bool case_sensitive) {
  return value.text() && !case_sensitive ? run.text(to_lower(*value.text())) : value;
}

struct Keyed {
  Value key, value;
};

std::vector<Keyed> keyed(Run& run, const Value& value, const Value& attribute, bool case_sensitive) {
  std::vector<Keyed> out;
  for (Value& v : items_of(run, value)) {
    Value key = sort_key(run, by_path(run, v, attribute), case_sensitive);
    out.push_back({std::move(key), std::move(v)});
  }
  return out;
}

void sort_by_key(Run& run, std::vector<Keyed>& items, bool reverse) {
  // Python keeps the order of equal items in both directions.
  std::stable_sort(items.begin(), items.end(), [&](const Keyed& a, const Keyed& b) {
    return reverse ? compare(run, b.key, a.key) < 0 : compare(run, a.key, b.key) < 0;
  });
}

Value filter_sort(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {"reverse", "case_sensitive", "attribute"});
  auto items =
      keyed(run, value, args.get(2, "attribute", Value(None{})), truth(args.get(1, "case_sensitive", Value(false))));
  sort_by_key(run, items, truth(args.get(0, "reverse", Value(false))));
  std::vector<Value> out;
  for (Keyed& k : items) out.push_back(std::move(k.value));
  return run.list(std::move(out));
}

Value filter_dictsort(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {"case_sensitive", "by", "reverse"});
  const bool case_sensitive = truth(args.get(0, "case_sensitive", Value(false)));
  const std::string by = str(run, args.get(1, "by", text_value("key")));
  if (by != "key" && by != "value") run.fail("dictsort by '{}'; expected key or value", by);
  if (!value.dict()) run.fail("dictsort needs a dict; found {}", kind_of(value));
  std::vector<Keyed> items;
  for (const auto& [k, v] : value.dict()->items)
    items.push_back({sort_key(run, by == "key" ? k : v, case_sensitive), run.list({k, v}, Form::tuple)});
  sort_by_key(run, items, truth(args.get(2, "reverse", Value(false))));
  std::vector<Value> out;
  for (Keyed& k : items) out.push_back(std::move(k.value));
  return run.list(std::move(out));
}

Value filter_unique(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {"case_sensitive", "attribute"});
  std::vector<Value> seen, out;
  for (Keyed& k :
       keyed(run, value, args.get(1, "attribute", Value(None{})), truth(args.get(0, "case_sensitive", Value(false))))) {
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& s) { return equal(run, s, k.key); })) continue;
    seen.push_back(std::move(k.key));
    out.push_back(std::move(k.value));
  }
  return run.list(std::move(out), Form::stream);
}

template <int Sign> Value extreme(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {"case_sensitive", "attribute"});
  const auto items =
      keyed(run, value, args.get(1, "attribute", Value(None{})), truth(args.get(0, "case_sensitive", Value(false))));
  if (items.empty()) return missing("the extreme of an empty sequence");
  const Keyed* best = &items.front();
  for (const Keyed& k : items)
    if (Sign * compare(run, k.key, best->key) > 0) best = &k;
  return best->value;
}

Value filter_join(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {"d", "attribute"});
  const std::string between = str(run, args.get(0, "d", text_value("")));
  std::string out;
  bool first = true;
  for (const Value& v : items_of(run, value)) {
    if (!first) out += between;
    first = false;
    out += str(run, by_path(run, v, args.get(1, "attribute", Value(None{}))));
    run.bytes(between.size());
  }
  return run.text(std::move(out));
}

Value filter_list(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {});
  return run.list(items_of(run, value));
}

Value filter_first(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {});
  const auto items = items_of(run, value);
  return items.empty() ? missing("the first item of an empty sequence") : items.front();
}

Value filter_last(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {});
  const auto items = items_of(run, value);
  return items.empty() ? missing("the last item of an empty sequence") : items.back();
}

Value filter_length(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {});
  return Value(length_of(run, value));
}

Value filter_reverse(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {});
  auto items = items_of(run, value);
  std::reverse(items.begin(), items.end());
  if (!value.text()) return run.list(std::move(items), Form::stream);
  std::string out;
  for (const Value& v : items) out += *v.text();
  return run.text(std::move(out));
}

Value filter_items(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {});
  if (value.undefined()) return run.list({}, Form::stream);
  if (!value.dict()) run.fail("items needs a dict; found {}", kind_of(value));
  std::vector<Value> out;
  for (const auto& [k, v] : value.dict()->items) out.push_back(run.list({k, v}, Form::tuple));
  return run.list(std::move(out), Form::stream);
}

Value filter_sum(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {"attribute", "start"});
  Value out = args.get(1, "start", Value(std::int64_t{0}));
  for (const Value& v : items_of(run, value))
    out = arithmetic(run, '+', out, by_path(run, v, args.get(0, "attribute", Value(None{}))));
  return out;
}

Value filter_batch(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {"linecount", "fill_with"});
  const std::int64_t count = need_whole(run, args.need(run, 0, "linecount"), "linecount");
  const Value fill = args.get(1, "fill_with", Value(None{}));
  if (count < 1) run.fail("linecount is {}; expected at least 1", count);
  std::vector<Value> out, part;
  for (Value& v : items_of(run, value)) {
    part.push_back(std::move(v));
    if (static_cast<std::int64_t>(part.size()) < count) continue;
    out.push_back(run.list(std::move(part)));
    part.clear();
  }
  if (!part.empty()) {
    while (!fill.none() && static_cast<std::int64_t>(part.size()) < count) run.steps(4), part.push_back(fill);
    out.push_back(run.list(std::move(part)));
  }
  return run.list(std::move(out), Form::stream);
}

/// What map, select and so on walk over: nothing for none, 0 and so on.
std::vector<Value> items_if_true(Run& run, const Value& value) {
  return truth(value) ? items_of(run, value) : std::vector<Value>{};
}

/// The arguments after the first `n`.
Arguments after(const Arguments& args, std::size_t n, std::string_view callee) {
  Arguments out{callee, {}, args.named};
  out.positional.assign(args.positional.begin() + static_cast<std::ptrdiff_t>(std::min(n, args.positional.size())),
                        args.positional.end());
  return out;
}

Value filter_map(Run& run, const Value& value, Arguments& args) {
  std::vector<Value> out;
  if (args.positional.empty()) {
    const Value &path = args.need(run, 0, "attribute"), otherwise = args.get(1, "default", Value(None{}));
    for (const auto& [name, v] : args.named)
      if (name != "attribute" && name != "default") run.fail("map has no argument '{}'", name);
    const bool has_default = args.find(1, "default") != nullptr;
    for (const Value& v : items_if_true(run, value)) {
      Value item = by_path(run, v, path);
      out.push_back(item.undefined() && has_default ? otherwise : std::move(item));
    }
    return run.list(std::move(out), Form::stream);
  }
  const std::string& name = need_text(run, args.positional[0], "the filter of map");
  const Filter filter = find_filter(name);
  if (!filter) run.fail("the filter '{}' is not supported", name);
  for (const Value& v : items_if_true(run, value)) {
    Arguments rest = after(args, 1, name);
    out.push_back(filter(run, v, rest));
  }
  return run.list(std::move(out), Form::stream);
}

/// select, reject, selectattr and rejectattr.
template <bool Keep, bool OfAttribute> Value filter_select(Run& run, const Value& value, Arguments& args) {
  constexpr std::size_t kTest = OfAttribute ? 1 : 0;
  const Value path = OfAttribute ? args.need(run, 0, "attribute") : Value(None{});
  const std::string name =
      args.positional.size() > kTest ? need_text(run, args.positional[kTest], "the name of a test") : "";
  const Test test = name.empty() ? nullptr : find_test(name);
  if (!name.empty() && !test) run.fail("the test '{}' is not supported", name);
  std::vector<Value> out;
  for (Value& v : items_if_true(run, value)) {
    const Value subject = by_path(run, v, path);
    Arguments rest = after(args, kTest + 1, name);
    if ((test ? test(run, subject, rest) : truth(subject)) == Keep) out.push_back(std::move(v));
  }
  return run.list(std::move(out), Form::stream);
}

}  // namespace

Filter find_list_filter(std::string_view name) {
  static const std::map<std::string_view, Filter> kAll = {
      {"sort", filter_sort},
      {"dictsort", filter_dictsort},
      {"unique", filter_unique},
      {"min", extreme<-1>},
      {"max", extreme<1>},
      {"join", filter_join},
      {"list", filter_list},
      {"first", filter_first},
      {"last", filter_last},
      {"length", filter_length},
      {"count", filter_length},
      {"reverse", filter_reverse},
      {"items", filter_items},
      {"sum", filter_sum},
      {"batch", filter_batch},
      {"map", filter_map},
      {"select", filter_select<true, false>},
      {"reject", filter_select<false, false>},
      {"selectattr", filter_select<true, true>},
      {"rejectattr", filter_select<false, true>},
  };
  const auto found = kAll.find(name);
  return found == kAll.end() ? nullptr : found->second;
}

}  // namespace hpcdl::io::jinja

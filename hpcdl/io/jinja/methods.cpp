// Methods of strings, lists and dicts.
#include <algorithm>
#include <map>
#include <span>

#include "hpcdl/io/jinja/call.h"
#include "hpcdl/io/jinja/text.h"
#include "hpcdl/io/unicode.h"

namespace hpcdl::io::jinja {
namespace {

using Method = Value (*)(Run& run, const Value& self, Arguments& args);

std::vector<Value> values_of(Run& run, std::span<const std::string_view> parts) {
  std::vector<Value> out;
  for (const std::string_view part : parts) out.push_back(run.text(std::string(part)));
  return out;
}

template <bool Left, bool Right> Value strip_method(Run& run, const Value& self, Arguments& args) {
  args.expect(run, {"chars"});
  return run.text(std::string(strip(*self.text(), args.get(0, "chars", Value(None{})), Left, Right, run)));
}

template <bool FromRight> Value split_method(Run& run, const Value& self, Arguments& args) {
  args.expect(run, {"sep", "maxsplit"});
  const Value sep = args.get(0, "sep", Value(None{}));
  const std::string separator = sep.none() ? "" : need_text(run, sep, "the separator of split()");
  if (!sep.none() && separator.empty()) run.fail("the separator of split() is empty");
  const auto most = need_whole(run, args.get(1, "maxsplit", Value(std::int64_t{-1})), "maxsplit");
  run.steps(static_cast<std::int64_t>(self.text()->size() / 16));
  return run.list(values_of(run, split(run, *self.text(), separator, most, FromRight)));
}

/// startswith and endswith: any of a tuple, or the one text. Positions are not supported.
template <bool Front> Value meets_end(Run& run, const Value& self, Arguments& args) {
  args.expect(run, {"text"});
  const Value& what = args.need(run, 0, "text");
  const auto meets = [&](const Value& v) {
    const std::string& end = need_text(run, v, "the argument");
    run.steps(static_cast<std::int64_t>(end.size() / 64));
    return Front ? self.text()->starts_with(end) : self.text()->ends_with(end);
  };
  if (const List* list = what.list(); list && list->form == Form::tuple)
    return Value(std::any_of(list->items.begin(), list->items.end(), meets));
  return Value(meets(what));
}

template <bool Front> Value remove_end(Run& run, const Value& self, Arguments& args) {
  args.expect(run, {"text"});
  const std::string& end = need_text(run, args.need(run, 0, "text"), "the argument");
  std::string_view text = *self.text();
  if (Front ? text.starts_with(end) : text.ends_with(end))
    Front ? text.remove_prefix(end.size()) : text.remove_suffix(end.size());
  return run.text(std::string(text));
}

template <bool FromRight, bool Fail> Value find_text(Run& run, const Value& self, Arguments& args) {
  args.expect(run, {"text"});
  const std::string& what = need_text(run, args.need(run, 0, "text"), "the argument");
  run.steps(static_cast<std::int64_t>(self.text()->size() / 16));
  const std::size_t at = FromRight ? find_last_in(run, *self.text(), what) : find_in(*self.text(), what);
  if (at == std::string::npos && Fail) run.fail("the text to find is not there");
  return Value(at == std::string::npos ? std::int64_t{-1} : length_of(std::string_view(*self.text()).substr(0, at)));
}

Value count_text(Run& run, const Value& self, Arguments& args) {
  args.expect(run, {"text"});
  const std::string& what = need_text(run, args.need(run, 0, "text"), "the argument");
  run.steps(static_cast<std::int64_t>(self.text()->size() / 16));
  if (what.empty()) return Value(length_of(*self.text()) + 1);
  std::int64_t n = 0;
  for (std::size_t at = 0; (at = find_in(*self.text(), what, at)) != std::string::npos; at += what.size()) ++n;
  return Value(n);
}

Value replace_method(Run& run, const Value& self, Arguments& args) {
  args.expect(run, {"old", "new", "count"});
  return run.text(replaced(run, *self.text(), need_text(run, args.need(run, 0, "old"), "the first argument"),
                           need_text(run, args.need(run, 1, "new"), "the second argument"),
                           need_whole(run, args.get(2, "count", Value(std::int64_t{-1})), "the count")));
}

Value join_method(Run& run, const Value& self, Arguments& args) {
  args.expect(run, {"items"});
  std::string out;
  bool first = true;
  for (const Value& v : items_of(run, args.need(run, 0, "items"))) {
    if (!first) out += *self.text();
    first = false;
    out += need_text(run, v, "an item of join()");
    run.bytes(self.text()->size());
  }
  return run.text(std::move(out));
}

Value splitlines(Run& run, const Value& self, Arguments& args) {
  args.expect(run, {"keepends"});
  return run.list(values_of(run, lines_of(*self.text(), truth(args.get(0, "keepends", Value(false))))));
}

template <auto F> Value changed(Run& run, const Value& self, Arguments& args) {
  args.expect(run, {});
  return run.text(F(*self.text()));
}

template <bool FromRight> Value partition(Run& run, const Value& self, Arguments& args) {
  args.expect(run, {"sep"});
  const std::string& sep = need_text(run, args.need(run, 0, "sep"), "the separator");
  if (sep.empty()) run.fail("the separator is empty");
  const std::string_view text = *self.text();
  const std::size_t at = FromRight ? find_last_in(run, text, sep) : find_in(text, sep);
  const bool found = at != std::string_view::npos;
  const std::string_view none;
  const std::string_view parts[] = {found       ? text.substr(0, at)
                                    : FromRight ? none
                                                : text,
                                    found ? sep : none,
                                    found       ? text.substr(at + sep.size())
                                    : FromRight ? text
                                                : none};
  return run.list(values_of(run, parts), Form::tuple);
}

/// Whether there is a character, and all are of the kind.
template <auto F> Value all_characters(Run& run, const Value& self, Arguments& args) {
  args.expect(run, {});
  const std::string& text = *self.text();
  for (std::size_t at = 0; at < text.size();)
    if (!F(next_code_point(text, at))) return Value(false);
  return Value(!text.empty());
}

template <bool Upper> Value has_case(Run& run, const Value& self, Arguments& args) {
  args.expect(run, {});
  const std::string upper = to_upper(*self.text()), lower = to_lower(*self.text());
  return Value(upper != lower && *self.text() == (Upper ? upper : lower));
}

Value format_method(Run& run, const Value& self, Arguments& args) {
  return run.text(format_braces(run, *self.text(), args));
}

Value dict_items(Run& run, const Value& self, Arguments& args) {
  args.expect(run, {});
  std::vector<Value> out;
  for (const auto& [k, v] : self.dict()->items) out.push_back(run.list({k, v}, Form::tuple));
  return run.list(std::move(out), Form::view);
}

Value dict_keys(Run& run, const Value& self, Arguments& args) {
  args.expect(run, {});
  return run.list(items_of(run, self), Form::view);
}

Value dict_values(Run& run, const Value& self, Arguments& args) {
  args.expect(run, {});
  std::vector<Value> out;
  for (const auto& [k, v] : self.dict()->items) out.push_back(v);
  return run.list(std::move(out), Form::view);
}

Value dict_get(Run& run, const Value& self, Arguments& args) {
  args.expect(run, {"key", "default"});
  const Value* found = find_key(run, *self.dict(), args.need(run, 0, "key"));
  return found ? *found : args.get(1, "default", Value(None{}));
}

Value copy(Run& run, const Value& self, Arguments& args) {
  args.expect(run, {});
  return self;  // values do not change
}

Value list_index(Run& run, const Value& self, Arguments& args) {
  args.expect(run, {"value"});
  const auto& items = self.list()->items;
  for (std::size_t i = 0; i < items.size(); ++i)
    if (equal(run, items[i], args.need(run, 0, "value"))) return Value(static_cast<std::int64_t>(i));
  run.fail("the value to find is not in the list");
}

Value list_count(Run& run, const Value& self, Arguments& args) {
  args.expect(run, {"value"});
  std::int64_t n = 0;
  for (const Value& v : self.list()->items) n += equal(run, v, args.need(run, 0, "value"));
  return Value(n);
}

constexpr auto kLetter = [](char32_t c) { return char_class(c) == CharClass::letter; };
constexpr auto kDigit = [](char32_t c) { return char_class(c) == CharClass::number; };
constexpr auto kLetterOrDigit = [](char32_t c) { return kLetter(c) || kDigit(c); };

const std::map<std::string_view, Method>& text_methods() {
  static const std::map<std::string_view, Method> kAll = {
      {"strip", strip_method<true, true>},
      {"lstrip", strip_method<true, false>},
      {"rstrip", strip_method<false, true>},
      {"split", split_method<false>},
      {"rsplit", split_method<true>},
      {"splitlines", splitlines},
      {"startswith", meets_end<true>},
      {"endswith", meets_end<false>},
      {"removeprefix", remove_end<true>},
      {"removesuffix", remove_end<false>},
      {"find", find_text<false, false>},
      {"rfind", find_text<true, false>},
      {"index", find_text<false, true>},
      {"rindex", find_text<true, true>},
      {"count", count_text},
      {"replace", replace_method},
      {"join", join_method},
      {"upper", changed<to_upper>},
      {"lower", changed<to_lower>},
      {"capitalize", changed<capitalized>},
      {"title", changed<[](const std::string& s) { return titled(s, ""); }>},
      {"partition", partition<false>},
      {"rpartition", partition<true>},
      {"isspace", all_characters<is_python_space>},
      {"isalpha", all_characters<kLetter>},
      {"isdigit", all_characters<kDigit>},
      {"isnumeric", all_characters<kDigit>},
      {"isalnum", all_characters<kLetterOrDigit>},
      {"isupper", has_case<true>},
      {"islower", has_case<false>},
      {"format", format_method},
  };
  return kAll;
}

const std::map<std::string_view, Method>& dict_methods() {
  static const std::map<std::string_view, Method> kAll = {
      {"items", dict_items}, {"keys", dict_keys}, {"values", dict_values}, {"get", dict_get}, {"copy", copy}};
  return kAll;
}

const std::map<std::string_view, Method>& list_methods() {
  static const std::map<std::string_view, Method> kAll = {{"index", list_index}, {"count", list_count}, {"copy", copy}};
  return kAll;
}

constexpr std::string_view kOtherTextMethods[] = {
    "casefold",    "center",  "encode", "expandtabs", "format_map", "isascii",  "isdecimal", "isidentifier",
    "isprintable", "istitle", "ljust",  "maketrans",  "rjust",      "swapcase", "translate", "zfill"};
constexpr std::string_view kListChanges[] = {"append", "extend", "insert", "pop", "remove", "reverse", "sort", "clear"};
constexpr std::string_view kDictChanges[] = {"pop", "popitem", "update", "clear", "setdefault"};

bool among(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::optional<Value> find_method(Run& run, const Value& value, std::string_view name) {
  const bool list = value.list() && value.list()->form <= Form::tuple;
  if (!value.text() && !value.dict() && !list) return std::nullopt;
  if (value.text() && among(kOtherTextMethods, name)) run.fail("the method '{}' of strings is not supported", name);
  if ((list && value.list()->form == Form::list && among(kListChanges, name)) ||
      (value.dict() && among(kDictChanges, name)))
    return undefined_because(fmt::format("{}() changes a {}, which templates must not do", name, kind_of(value)));
  const auto& all = value.text() ? text_methods() : value.dict() ? dict_methods() : list_methods();
  const auto found = all.find(name);
  if (found == all.end()) return std::nullopt;
  return make_function(std::string(name),
                       [value, method = found->second](Run& r, Arguments& args) { return method(r, value, args); });
}

}  // namespace hpcdl::io::jinja

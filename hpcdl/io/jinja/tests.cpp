// Tests: `value is string` and so on.
#include <map>

#include "hpcdl/io/jinja/call.h"
#include "hpcdl/io/unicode.h"

namespace hpcdl::io::jinja {
namespace {

template <auto F> bool simple(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {});
  return F(value);
}

/// Compares with the one argument.
template <auto F> bool binary(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {"other"});
  return F(run, value, args.need(run, 0, "other"));
}

bool is_list(const Value& v) { return v.list() && v.list()->form <= Form::tuple; }

bool same(Run&, const Value& a, const Value& b) {
  if (a.data().index() != b.data().index()) return false;
  if (a.text()) return a.text() == b.text();
  if (a.list() || a.dict()) return a.list() == b.list() && a.dict() == b.dict();
  if (a.boolean()) return *a.boolean() == *b.boolean();
  if (a.whole()) return *a.whole() == *b.whole();
  return a.none() || (a.space() && a.space() == b.space()) || (a.function() && a.function() == b.function());
}

bool divides(Run& run, const Value& value, const Value& by) {
  const Value rest = arithmetic(run, '%', value, by);
  return !truth(rest);
}

template <int Rest> bool parity(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {});
  return equal(run, arithmetic(run, '%', value, Value(std::int64_t{2})), Value(std::int64_t{Rest}));
}

/// str.isupper() and str.islower(): there is a letter with case, and none of the other case.
template <bool Upper> bool in_case(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {});
  const std::string text = str(run, value), upper = to_upper(text), lower = to_lower(text);
  return upper != lower && text == (Upper ? upper : lower);
}

}  // namespace

Test find_test(std::string_view name) {
  static constexpr auto kEqual = binary<[](Run& r, const Value& a, const Value& b) { return equal(r, a, b); }>;
  static constexpr auto kDiffers = binary<[](Run& r, const Value& a, const Value& b) { return !equal(r, a, b); }>;
  static constexpr auto kLess = binary<[](Run& r, const Value& a, const Value& b) { return (compare(r, a, b) < 0); }>;
  static constexpr auto kMost = binary<[](Run& r, const Value& a, const Value& b) { return (compare(r, a, b) <= 0); }>;
  static constexpr auto kMore = binary<[](Run& r, const Value& a, const Value& b) { return (compare(r, a, b) > 0); }>;
  static constexpr auto kLeast = binary<[](Run& r, const Value& a, const Value& b) { return (compare(r, a, b) >= 0); }>;
  static const std::map<std::string_view, Test> kAll = {
      {"defined", simple<[](const Value& v) { return !v.undefined(); }>},
      {"undefined", simple<[](const Value& v) { return v.undefined(); }>},
      {"none", simple<[](const Value& v) { return v.none(); }>},
      {"boolean", simple<[](const Value& v) { return v.boolean() != nullptr; }>},
      {"true", simple<[](const Value& v) { return v.boolean() && *v.boolean(); }>},
      {"false", simple<[](const Value& v) { return v.boolean() && !*v.boolean(); }>},
      {"integer", simple<[](const Value& v) { return v.whole() != nullptr; }>},
      {"float", simple<[](const Value& v) { return v.real() != nullptr; }>},
      {"number", simple<[](const Value& v) { return v.number(); }>},
      {"string", simple<[](const Value& v) { return v.text() != nullptr; }>},
      {"mapping", simple<[](const Value& v) { return v.dict() != nullptr; }>},
      {"sequence", simple<[](const Value& v) { return v.undefined() || v.text() || v.dict() || is_list(v); }>},
      {"iterable",
       simple<[](const Value& v) { return v.undefined() || v.text() || v.dict() || v.list() || v.loop(); }>},
      {"callable", simple<[](const Value& v) { return v.function() != nullptr; }>},
      {"escaped", simple<[](const Value& v) { return v.safe(); }>},
      {"odd", parity<1>},
      {"even", parity<0>},
      {"upper", in_case<true>},
      {"lower", in_case<false>},
      {"divisibleby", binary<divides>},
      {"sameas", binary<same>},
      {"in", binary<[](Run& r, const Value& a, const Value& b) { return contains(r, b, a); }>},
      {"eq", kEqual},
      {"==", kEqual},
      {"equalto", kEqual},
      {"ne", kDiffers},
      {"!=", kDiffers},
      {"lt", kLess},
      {"<", kLess},
      {"lessthan", kLess},
      {"le", kMost},
      {"<=", kMost},
      {"gt", kMore},
      {">", kMore},
      {"greaterthan", kMore},
      {"ge", kLeast},
      {">=", kLeast},
  };
  const auto found = kAll.find(name);
  return found == kAll.end() ? nullptr : found->second;
}

}  // namespace hpcdl::io::jinja

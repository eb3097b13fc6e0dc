// Numbers, strings, arrays and objects of a schema.

#include <algorithm>
#include <cmath>
#include <set>

#include "hpcdl/infer/grammar/regex.h"
#include "hpcdl/infer/grammar/schema_compiler.h"
#include "hpcdl/infer/grammar/string_formats.h"
#include "hpcdl/io/json.h"

namespace hpcdl::infer::grammar {
namespace {

constexpr std::int64_t kMostInteger = 999'999'999'999'999'999;

/// A bound of "minimum" or "exclusiveMinimum", the stronger of both; sign -1: of the maxima.
struct Bound {
  const OrderedJson* value = nullptr;
  bool open = false;
  const char* keyword = "";
};
Bound bound_of(const Place& place, const char* closed, const char* open, int sign) {
  Bound out;
  for (const char* keyword : {closed, open}) {
    const OrderedJson* value = place.find(keyword);
    if (!value) continue;
    if (!value->is_number()) place.at(keyword).refuse("expected a number, found {}", io::shown(value->dump()));
    const bool is_open = keyword == open;
    const bool stronger =
        !out.value || (sign > 0 ? *value > *out.value : *value < *out.value) || (is_open && *value == *out.value);
    if (stronger) out = {value, is_open, keyword};
  }
  return out;
}

/// The first integer that a bound allows, upwards (sign 1) or downwards (-1).
std::int64_t integer_bound(const Place& place, const Bound& bound, int sign) {
  if (!bound.value) return -sign * kMostInteger;
  const double x = bound.value->get<double>();
  if (x * sign > 1e18)
    place.at(bound.keyword)
        .refuse("integers are supported from -10^18 to 10^18, none of them meets {}", bound.value->dump());
  if (x * sign < -1e18) return -sign * kMostInteger;
  std::int64_t first = 0;
  if (bound.value->is_number_integer()) {
    first = bound.value->get<std::int64_t>();
    if (bound.open) first += sign;
  } else {
    const double whole = sign > 0 ? std::ceil(x) : std::floor(x);
    first = static_cast<std::int64_t>(whole);
    if (bound.open && whole == x) first += sign;
  }
  return first;
}

std::optional<DecimalBound> number_bound(const Place& place, const Bound& bound, int sign) {
  constexpr double kMost = 999'999'999'999'999;
  if (!bound.value) return std::nullopt;
  const double x = bound.value->get<double>();
  if (x * sign < -kMost) return std::nullopt;
  auto decimal = decimal_bound(x, bound.open);
  if (!decimal) place.at(bound.keyword).refuse("expected a bound of at most 15 digits, found {}", bound.value->dump());
  return decimal;
}

bool is_false(const Place& place) { return *place.schema == OrderedJson(false); }

}  // namespace

void SchemaCompiler::number(const Place& place, bool fractions, StateId from, StateId to) {
  const Bound min = bound_of(place, "minimum", "exclusiveMinimum", 1);
  const Bound max = bound_of(place, "maximum", "exclusiveMaximum", -1);
  if (!min.value && !max.value) return builder_.call(from, fractions ? json_.number() : json_.integer(), to);
  const auto nothing = [&] {
    place.at(min.value ? min.keyword : max.keyword).refuse("no number is within the bounds");
  };
  if (!fractions) {
    const auto first = integer_bound(place, min, 1), last = integer_bound(place, max, -1);
    if (first > last) nothing();
    return build_integer(builder_, from, first, last, to);
  }
  if (min.value && max.value && (*min.value > *max.value || (*min.value == *max.value && (min.open || max.open))))
    nothing();
  build_decimal(builder_, from, number_bound(place, min, 1), number_bound(place, max, -1), to);
}

void SchemaCompiler::string(const Place& place, StateId from, StateId to) {
  const int min = count_of(place, "minLength", 0), max = count_of(place, "maxLength", kUnbounded);
  if (max != kUnbounded && min > max) place.at("minLength").refuse("no string is within minLength and maxLength");
  if (!place.has("pattern") && !place.has("format")) return builder_.call(from, json_.string(min, max), to);
  if (place.has("pattern") && place.has("format"))
    place.at("format").refuse("\"format\" and \"pattern\" cannot be enforced together");
  const char* keyword = place.has("pattern") ? "pattern" : "format";
  const Place there = place.at(keyword);
  if (!there.schema->is_string()) there.refuse("expected a string, found {}", there.schema->type_name());
  const auto& text = there.schema->get_ref<const std::string&>();
  const std::string* pattern = place.has("pattern") ? &text : pattern_of_format(text);
  if (!pattern)
    there.refuse("the format {} cannot be enforced; supported are {}; or use \"pattern\"", io::shown(text),
                 format_names());
  const Expression e = parse_regex(*pattern, Match::search, "schema, " + there.pointer);
  const StateId begin = builder_.state(), end = builder_.state();
  builder_.byte(from, '"', begin);
  const auto [shortest, longest] = lengths(e);
  if (shortest >= min && (max == kUnbounded || longest <= max)) build(builder_, e, begin, end, Encoding::json);
  else build_within(builder_, e, begin, min, max, end, "schema, " + there.pointer);
  builder_.byte(end, '"', to);
}

void SchemaCompiler::array(const Place& place, StateId from, StateId to) {
  if (const OrderedJson* unique = place.find("uniqueItems"); unique && *unique != OrderedJson(false))
    place.at("uniqueItems").refuse("this keyword cannot be enforced; leave it out");
  std::vector<Place> items;
  if (const OrderedJson* prefix = place.find("prefixItems")) {
    if (!prefix->is_array())
      place.at("prefixItems").refuse("expected a list of schemas, found {}", prefix->type_name());
    for (std::size_t i = 0; i < prefix->size(); ++i) items.push_back(place.at("prefixItems").at(std::to_string(i)));
  }
  if (place.has("items") && place.find("items")->is_array())
    place.at("items").refuse("expected a schema, found a list; use \"prefixItems\"");
  const int min = count_of(place, "minItems", 0);
  int max = count_of(place, "maxItems", kUnbounded);
  const Place rest = place.has("items") ? place.at("items") : keep(true, place.pointer);
  const auto allow_only = [&](std::size_t count) {
    const int most = static_cast<int>(count);
    max = max == kUnbounded ? most : std::min(max, most);
  };
  if (is_false(rest)) allow_only(items.size());
  for (std::size_t i = items.size(); i-- > 0;)
    if (is_false(items[i])) allow_only(i);
  if (max != kUnbounded && min > max)
    place.at("minItems").refuse("no array has at least {} items and at most {}", min, max);
  if (items.empty()) items.push_back(rest);

  const StateId opened = builder_.state(), last = builder_.state();
  json_.open(from, '[', opened);
  if (min == 0) builder_.byte(opened, ']', to);
  json_.close(last, ']', to);
  StateId at = opened;
  for (std::size_t i = 0; i < items.size() && (max == kUnbounded || static_cast<int>(i) < max); ++i) {
    if (i > 0) {
      const StateId next = builder_.state();
      json_.comma(at, next);
      at = next;
    }
    const StateId after = builder_.state();
    builder_.call(at, rule_of(items[i]), after);
    at = after;
    if (static_cast<int>(i) + 1 >= min) builder_.jump(at, last);
  }
  const int done = static_cast<int>(items.size());
  if (is_false(rest) || (max != kUnbounded && max <= done)) return;
  const StateId more = builder_.state();
  builder_.repeat(
      at, std::max(0, min - done), max == kUnbounded ? max : max - done, true,
      [&](StateId a, StateId z) {
        const StateId item = builder_.state();
        json_.comma(a, item);
        builder_.call(item, rule_of(rest), z);
      },
      more);
  builder_.jump(more, last);
}

void SchemaCompiler::object(const Place& place, StateId from, StateId to) {
  struct Property {
    std::string name;
    Place schema;
    bool required;
  };
  std::vector<Property> properties;
  std::set<std::string> names, required;
  if (const OrderedJson* list = place.find("required")) {
    if (!list->is_array()) place.at("required").refuse("expected a list of names, found {}", list->type_name());
    for (const auto& name : *list) {
      if (!name.is_string()) place.at("required").refuse("expected names, found {}", io::shown(name.dump()));
      required.insert(name.get<std::string>());
    }
  }
  const Place more = place.has("additionalProperties") ? place.at("additionalProperties") : keep(true, place.pointer);
  check_keywords(more);
  if (const OrderedJson* all = place.find("properties")) {
    const Place there = place.at("properties");
    if (!all->is_object()) there.refuse("expected an object of schemas, found {}", all->type_name());
    for (const auto& [name, schema] : all->items()) {
      names.insert(name);
      const Place property = there.at(name);
      if (!is_false(property)) properties.push_back({name, property, required.contains(name)});
      else if (required.contains(name)) property.refuse("the property is required, but no value is allowed for it");
    }
  }
  for (const std::string& name : required) {
    if (names.contains(name)) continue;
    if (is_false(more))
      place.at("required").refuse("{} is required, but \"additionalProperties\" does not allow it", io::shown(name));
    names.insert(name);
    properties.push_back({name, more, true});
  }
  const int least = count_of(place, "minProperties", 0), most = count_of(place, "maxProperties", kUnbounded);
  if (least > static_cast<int>(required.size()))
    place.at("minProperties").refuse("cannot be enforced unless as many properties are required");
  if (most != kUnbounded && !(is_false(more) && most >= static_cast<int>(properties.size())))
    place.at("maxProperties")
        .refuse("cannot be enforced unless \"additionalProperties\" is false and there are no more properties");

  // `key[i]` expects one of the properties from i on, `after[i]` follows the value of one before i.
  const std::size_t count = properties.size();
  std::vector<StateId> key(count + 1), after(count + 1);
  for (std::size_t i = 0; i <= count; ++i) {
    key[i] = builder_.state();
    after[i] = builder_.state();
  }
  const StateId opened = builder_.state(), last = builder_.state();
  json_.close(last, '}', to);
  json_.open(from, '{', opened);
  if (required.empty()) builder_.byte(opened, '}', to);
  builder_.jump(opened, key[0]);
  bool complete = true;  // nothing is required from i on
  for (std::size_t i = count + 1; i-- > 0;) {
    if (i < count) complete = complete && !properties[i].required;
    if (i > 0 && complete) builder_.jump(after[i], last);
    if (i > 0) json_.comma(after[i], key[i]);
    if (i == count) continue;
    const StateId colon = builder_.state(), value = builder_.state();
    builder_.literal(key[i], JsonText::quoted(properties[i].name), colon);
    json_.colon(colon, value);
    builder_.call(value, rule_of(properties[i].schema), after[i + 1]);
    if (!properties[i].required) builder_.jump(key[i], key[i + 1]);
  }
  if (is_false(more)) return;
  const StateId colon = builder_.state(), value = builder_.state(), end = builder_.state();
  json_.other_key(key[count], names, colon);
  json_.colon(colon, value);
  builder_.call(value, rule_of(more), end);
  builder_.jump(end, last);
  json_.comma(end, key[count]);
}

}  // namespace hpcdl::infer::grammar

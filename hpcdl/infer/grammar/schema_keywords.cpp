#include "hpcdl/infer/grammar/schema_keywords.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <vector>

#include "hpcdl/io/json.h"
#include "hpcdl/io/nearest.h"

namespace hpcdl::infer::grammar {
namespace {

const std::vector<std::string>& annotations() {
  static const std::vector<std::string> all = {
      "title",      "description",     "default",          "examples",      "$comment",
      "$schema",    "$defs",           "definitions",      "readOnly",      "writeOnly",
      "deprecated", "contentEncoding", "contentMediaType", "contentSchema", "discriminator"};
  return all;
}

/// Keywords that restrict, with the kinds of values that they restrict.
const std::map<std::string, unsigned, std::less<>>& enforced() {
  static const std::map<std::string, unsigned, std::less<>> all = {{"type", kAnyKind},
                                                                   {"enum", kAnyKind},
                                                                   {"const", kAnyKind},
                                                                   {"$ref", kAnyKind},
                                                                   {"allOf", kAnyKind},
                                                                   {"anyOf", kAnyKind},
                                                                   {"oneOf", kAnyKind},
                                                                   {"properties", kObject},
                                                                   {"required", kObject},
                                                                   {"additionalProperties", kObject},
                                                                   {"minProperties", kObject},
                                                                   {"maxProperties", kObject},
                                                                   {"items", kArray},
                                                                   {"prefixItems", kArray},
                                                                   {"minItems", kArray},
                                                                   {"maxItems", kArray},
                                                                   {"uniqueItems", kArray},
                                                                   {"minLength", kString},
                                                                   {"maxLength", kString},
                                                                   {"pattern", kString},
                                                                   {"format", kString},
                                                                   {"minimum", kNumber},
                                                                   {"maximum", kNumber},
                                                                   {"exclusiveMinimum", kNumber},
                                                                   {"exclusiveMaximum", kNumber}};
  return all;
}

/// Keywords of the draft that cannot be enforced while a text is written.
constexpr std::array<std::string_view, 19> kRefused = {"not",
                                                       "if",
                                                       "then",
                                                       "else",
                                                       "patternProperties",
                                                       "propertyNames",
                                                       "contains",
                                                       "minContains",
                                                       "maxContains",
                                                       "multipleOf",
                                                       "dependentRequired",
                                                       "dependentSchemas",
                                                       "dependencies",
                                                       "unevaluatedProperties",
                                                       "unevaluatedItems",
                                                       "$dynamicRef",
                                                       "$dynamicAnchor",
                                                       "$anchor",
                                                       "additionalItems"};

struct TypeName {
  std::string_view name;
  unsigned kinds;
};
constexpr std::array<TypeName, 7> kTypes = {{{"null", kNull},
                                             {"boolean", kBoolean},
                                             {"string", kString},
                                             {"integer", kInteger},
                                             {"number", kNumber},
                                             {"array", kArray},
                                             {"object", kObject}}};

unsigned kinds_named(const Place& place, const OrderedJson& name) {
  if (name.is_string())
    for (const auto& type : kTypes)
      if (name.get_ref<const std::string&>() == type.name) return type.kinds;
  place.refuse("expected null, boolean, string, integer, number, array or object, found {}", io::shown(name.dump()));
}

}  // namespace

Place Place::at(std::string_view key) const {
  std::string escaped;
  for (const char c : key) escaped += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  const OrderedJson* inner = schema;
  if (schema->is_object()) {
    const auto it = schema->find(key);
    if (it != schema->end()) inner = &*it;
  } else if (schema->is_array()) {
    inner = &schema->at(std::stoul(std::string(key)));
  }
  return {inner, pointer + "/" + escaped};
}

const OrderedJson* Place::find(const char* keyword) const {
  if (!schema->is_object()) return nullptr;
  const auto it = schema->find(keyword);
  return it == schema->end() ? nullptr : &*it;
}

bool is_annotation(std::string_view keyword) {
  const auto& all = annotations();
  return keyword.starts_with("x-") || std::find(all.begin(), all.end(), keyword) != all.end();
}

void check_keywords(const Place& place) {
  if (place.schema->is_boolean()) return;
  if (!place.schema->is_object())
    place.refuse("expected a schema, which is an object, true or false, found {}", place.schema->type_name());
  for (const auto& [keyword, value] : place.schema->items()) {
    if (is_annotation(keyword) || enforced().contains(keyword)) continue;
    const Place there = place.at(keyword);
    if (keyword == "$id") {
      if (place.pointer == "#") continue;
      there.refuse("\"$id\" is supported only at the root");
    }
    if (std::find(kRefused.begin(), kRefused.end(), keyword) != kRefused.end())
      there.refuse("this keyword cannot be enforced; leave it out, or say the same in another way");
    std::vector<std::string> known = annotations();
    for (const auto& [name, kinds] : enforced()) known.push_back(name);
    const auto near = io::nearest(keyword, known);
    there.refuse("unknown keyword{}", near ? "; did you mean \"" + *near + "\"?" : "");
  }
}

unsigned kinds_of_type(const Place& place) {
  const OrderedJson* type = place.find("type");
  if (!type) {
    unsigned kinds = 0;
    if (place.schema->is_object())
      for (const auto& [keyword, value] : place.schema->items())
        if (const auto it = enforced().find(keyword); it != enforced().end() && it->second != kAnyKind)
          kinds |= it->second;
    return kinds ? kinds : kAnyKind;
  }
  const Place there = place.at("type");
  if (!type->is_array()) return kinds_named(there, *type);
  if (type->empty()) there.refuse("expected at least one type; no value meets an empty list");
  unsigned kinds = 0;
  for (const auto& name : *type) kinds |= kinds_named(there, name);
  return kinds;
}

unsigned kind_of(const OrderedJson& value) {
  if (value.is_null()) return kNull;
  if (value.is_boolean()) return kBoolean;
  if (value.is_string()) return kString;
  if (value.is_array()) return kArray;
  if (value.is_object()) return kObject;
  if (value.is_number_integer()) return kInteger;
  const double x = value.get<double>();
  return x == std::floor(x) ? kInteger : kFraction;
}

int count_of(const Place& place, const char* keyword, int otherwise) {
  const OrderedJson* value = place.find(keyword);
  if (!value) return otherwise;
  const Place there = place.at(keyword);
  constexpr double kMost = 1e9;
  const bool whole = value->is_number() && kind_of(*value) == kInteger && value->get<double>() >= 0;
  if (!whole) there.refuse("expected a whole number that is not negative, found {}", io::shown(value->dump()));
  if (value->get<double>() > kMost) there.refuse("expected at most 10^9, found {}", value->dump());
  return static_cast<int>(value->get<double>());
}

}  // namespace hpcdl::infer::grammar

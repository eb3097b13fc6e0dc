#include <algorithm>
#include <cmath>
#include <set>

#include "hpcdl/infer/grammar/schema_keywords.h"
#include "hpcdl/io/json.h"

namespace hpcdl::infer::grammar {
namespace {

constexpr std::size_t kMaxSchema = std::size_t{1} << 20;
constexpr int kMaxChain = 32;
constexpr std::size_t kMaxSpent = 1'000'000;

const OrderedJson& strongest(std::string_view keyword, const OrderedJson& a, const OrderedJson& b) {
  const bool lower = keyword.starts_with("min") || keyword == "exclusiveMinimum";
  return (lower ? b > a : b < a) ? b : a;
}

bool is_bound(std::string_view keyword) {
  return keyword.starts_with("min") || keyword.starts_with("max") || keyword.starts_with("exclusive");
}

std::set<std::string> names_in(const Place& place, const char* keyword) {
  std::set<std::string> names;
  if (const OrderedJson* value = place.find(keyword)) {
    if (value->is_object())
      for (const auto& [key, item] : value->items()) names.insert(key);
    else if (value->is_array())
      for (const auto& item : *value)
        if (item.is_string()) names.insert(item.get<std::string>());
  }
  return names;
}

/// The values that "const" or "enum" allows; none if neither is there.
std::optional<std::vector<OrderedJson>> listed(const Place& place) {
  if (const OrderedJson* one = place.find("const")) return std::vector{*one};
  if (const OrderedJson* all = place.find("enum"); all && all->is_array())
    return std::vector<OrderedJson>(all->begin(), all->end());
  return std::nullopt;
}

std::size_t values_in(const OrderedJson& value) {
  std::size_t sum = 1;
  if (value.is_structured())
    for (const auto& item : value) sum += values_in(item);
  return sum;
}

bool share_none(const std::vector<OrderedJson>& a, const std::vector<OrderedJson>& b) {
  return std::none_of(a.begin(), a.end(), [&](const auto& x) { return std::find(b.begin(), b.end(), x) != b.end(); });
}

}  // namespace

SchemaDocument::SchemaDocument(std::string_view text) {
  require(text.size() <= kMaxSchema, "grammar", "schema: expected at most {} bytes, found {}", kMaxSchema, text.size());
  io::parse_json(text, "schema");  // refuses what a JSON text must not have; the order of keys is kept below
  root_ = OrderedJson::parse(text.begin(), text.end());
}

Place SchemaDocument::target(const Place& place) const {
  const Place there = place.at("$ref");
  const OrderedJson& ref = *there.schema;
  if (!ref.is_string()) there.refuse("expected a string, found {}", ref.type_name());
  const auto& text = ref.get_ref<const std::string&>();
  if (text != "#" && !text.starts_with("#/"))
    there.refuse("expected a pointer into this document, such as \"#/$defs/name\", found {}", io::shown(text));
  Place at = root();
  for (std::size_t begin = 2; begin <= text.size();) {
    const std::size_t end = std::min(text.find('/', begin), text.size());
    std::string key = decoded(there, text.substr(begin, end - begin));
    const bool is_index = !key.empty() && key.size() < 9 &&
                          std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    const bool found = at.schema->is_object()  ? at.schema->contains(key)
                       : at.schema->is_array() ? is_index && std::stoul(key) < at.schema->size()
                                               : false;
    if (!found) there.refuse("{} does not exist in the document", io::shown(text));
    at = at.at(key);
    begin = end + 1;
  }
  return at;
}

std::string SchemaDocument::decoded(const Place& there, const std::string& part) {
  std::string key;
  for (std::size_t i = 0; i < part.size(); ++i) {
    if (part[i] == '~') {
      const char c = i + 1 < part.size() ? part[++i] : '\0';
      if (c != '0' && c != '1') there.refuse("expected \"~0\" or \"~1\" after \"~\" in a pointer");
      key += c == '0' ? '~' : '/';
    } else if (part[i] == '%') {
      const auto digits = part.substr(i + 1, 2);
      const bool hex = digits.size() == 2 && digits.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
      if (!hex) there.refuse("expected two hexadecimal digits after \"%\" in a pointer");
      key += static_cast<char>(std::stoi(digits, nullptr, 16));
      i += 2;
    } else {
      key += part[i];
    }
  }
  return key;
}

Place SchemaDocument::resolved(Place place) const {
  for (int step = 0; place.has("$ref"); ++step) {
    if (step == kMaxChain) place.refuse("expected at most {} references in a row, found more or a circle", kMaxChain);
    for (const auto& [keyword, value] : place.schema->items())
      if (keyword != "$ref" && !is_annotation(keyword)) return place;
    place = target(place);
  }
  return place;
}

OrderedJson SchemaDocument::both(const Place& first, const Place& second, int depth) const {
  if (depth > kMaxChain) second.refuse("schemas that hold at once are nested too deeply");
  const Place a = resolved(first), b = resolved(second);
  check_keywords(a);
  check_keywords(b);
  if (a.schema->is_boolean()) return a.schema->get<bool>() ? *b.schema : *a.schema;
  if (b.schema->is_boolean()) return b.schema->get<bool>() ? *a.schema : *b.schema;
  spend(b, values_in(*a.schema) + values_in(*b.schema));
  OrderedJson out = *a.schema;
  const auto may_differ = [&](const char* keyword) {
    return a.has(keyword) && b.has(keyword) && *a.find(keyword) != *b.find(keyword);
  };
  const auto undecided = [&](const Place& place) {
    place.refuse("cannot be combined with the same keyword of another schema that holds for the same value");
  };
  // "additionalProperties" speaks of names that are not in "properties" beside it, "items" of those after
  // "prefixItems".
  const auto open = [](const Place& p) {
    const OrderedJson* more = p.find("additionalProperties");
    return !more || *more == OrderedJson(true);
  };
  if ((!open(a) || !open(b)) && names_in(a, "properties") != names_in(b, "properties") &&
      !(names_in(a, "properties").empty() && open(a)) && !(names_in(b, "properties").empty() && open(b)))
    undecided(open(a) ? b.at("additionalProperties") : a.at("additionalProperties"));
  const bool lists = (a.has("items") || a.has("prefixItems")) && (b.has("items") || b.has("prefixItems"));
  for (const char* keyword : {"items", "prefixItems"})
    if (lists && (a.has(keyword) != b.has(keyword) || may_differ(keyword)))
      undecided(b.has(keyword) ? b.at(keyword) : a.at(keyword));

  for (const auto& [keyword, value] : b.schema->items()) {
    if (is_annotation(keyword)) continue;
    const OrderedJson* mine = a.find(keyword.c_str());
    if (!mine || *mine == value) {
      out[keyword] = value;
    } else if (keyword == "required" && mine->is_array() && value.is_array()) {
      out[keyword].insert(out[keyword].end(), value.begin(), value.end());
    } else if (is_bound(keyword) && mine->is_number() && value.is_number()) {
      out[keyword] = strongest(keyword, *mine, value);
    } else if (keyword == "type") {
      const unsigned kinds = kinds_of_type(a) & kinds_of_type(b);
      out[keyword] = names_of_kinds(kinds);
      if (out[keyword].empty())
        b.at(keyword).refuse("no value has this type and that of another schema that holds for it");
    } else if (keyword == "properties" && mine->is_object() && value.is_object()) {
      const Place all_a = a.at(keyword), all_b = b.at(keyword);
      for (const auto& [name, schema] : value.items())
        out[keyword][name] = mine->contains(name) ? both(all_a.at(name), all_b.at(name), depth + 1) : schema;
    } else if (keyword == "enum" && mine->is_array() && value.is_array()) {
      OrderedJson common = OrderedJson::array();
      for (const auto& item : *mine)
        if (std::find(value.begin(), value.end(), item) != value.end()) common.push_back(item);
      out[keyword] = common;
    } else {
      undecided(b.at(keyword));
    }
  }
  return out;
}

void SchemaDocument::spend(const Place& place, std::size_t values) const {
  spent_ += values;
  if (spent_ > kMaxSpent) place.refuse("the schema combines too many others by references; write it more simply");
}

OrderedJson SchemaDocument::names_of_kinds(unsigned kinds) {
  OrderedJson names = OrderedJson::array();
  const auto add = [&](unsigned some, const char* name) {
    if ((kinds & some) == some) names.push_back(name);
  };
  add(kNull, "null");
  add(kBoolean, "boolean");
  add(kString, "string");
  kinds& kFraction ? add(kNumber, "number") : add(kInteger, "integer");
  add(kArray, "array");
  add(kObject, "object");
  return names;
}

unsigned SchemaDocument::kinds(const Place& given, int depth) const {
  if (depth > kMaxChain) return kAnyKind;
  spend(given, 1);
  const Place place = resolved(given);
  if (place.schema->is_boolean()) return place.schema->get<bool>() ? unsigned{kAnyKind} : 0u;
  check_keywords(place);
  unsigned all = place.has("type") ? kinds_of_type(place) : unsigned{kAnyKind};
  if (const auto values = listed(place)) {
    unsigned some = 0;
    for (const auto& value : *values) some |= kind_of(value);
    all &= some;
  }
  if (place.has("$ref")) all &= kinds(target(place), depth + 1);
  for (const char* keyword : {"anyOf", "oneOf", "allOf"}) {
    const OrderedJson* parts = place.find(keyword);
    if (!parts || !parts->is_array()) continue;
    const bool every = std::string_view(keyword) == "allOf";
    unsigned some = every ? unsigned{kAnyKind} : 0u;
    for (std::size_t i = 0; i < parts->size(); ++i) {
      const unsigned one = kinds(place.at(keyword).at(std::to_string(i)), depth + 1);
      some = every ? some & one : some | one;
    }
    all &= some;
  }
  return all;
}

bool SchemaDocument::are_apart(const Place& first, const Place& second) const {
  const Place a = resolved(first), b = resolved(second);
  const unsigned common = kinds(a) & kinds(b);
  if (common == 0) return true;
  const auto values_a = listed(a), values_b = listed(b);
  if (values_a && values_b && share_none(*values_a, *values_b)) return true;
  if (common != kObject) return false;
  const auto required_a = names_in(a, "required"), required_b = names_in(b, "required");
  for (const std::string& name : required_a) {
    if (!required_b.contains(name) || !names_in(a, "properties").contains(name) ||
        !names_in(b, "properties").contains(name))
      continue;
    const Place of_a = resolved(a.at("properties").at(name)), of_b = resolved(b.at("properties").at(name));
    if ((kinds(of_a) & kinds(of_b)) == 0) return true;
    const auto one = listed(of_a), other = listed(of_b);
    if (one && other && share_none(*one, *other)) return true;
  }
  return false;
}

}  // namespace hpcdl::infer::grammar

#include "hpcdl/infer/grammar/schema.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "hpcdl/infer/grammar/automaton.h"
#include "hpcdl/infer/grammar/json_text.h"
#include "hpcdl/infer/grammar/schema_compiler.h"
#include "hpcdl/io/json.h"

namespace hpcdl::infer::grammar {
namespace {

/// Whether an object or array schema has siblings of a keyword that restrict, too.
bool restricts_beside(const Place& place, std::string_view keyword) {
  for (const auto& [name, value] : place.schema->items())
    if (name != keyword && !is_annotation(name) && name != "$id") return true;
  return false;
}

}  // namespace

RuleId SchemaCompiler::compile(const Place& root) {
  const RuleId rule = rule_of(root);
  while (!todo_.empty()) {
    const auto [place, id] = todo_.front();
    todo_.pop_front();
    builder_.set_place("schema, " + place.pointer + ": ");
    value(place, builder_[id].start, builder_[id].end);
  }
  return rule;
}

RuleId SchemaCompiler::rule_of(const Place& place) {
  const auto [it, fresh] = rules_.try_emplace(place.schema, 0);
  if (fresh) {
    it->second = builder_.rule("schema, " + place.pointer);
    todo_.emplace_back(place, it->second);
  }
  return it->second;
}

Place SchemaCompiler::keep(OrderedJson schema, std::string pointer) {
  made_.push_back(std::move(schema));
  return {&made_.back(), std::move(pointer)};
}

void SchemaCompiler::value(const Place& place, StateId from, StateId to) {
  check_keywords(place);
  if (place.schema->is_boolean()) {
    if (place.schema->get<bool>()) builder_.call(from, json_.any(), to);
    return;
  }
  if (place.has("$ref")) {
    const Place target = document_.target(place);
    if (!restricts_beside(place, "$ref")) return builder_.call(from, rule_of(target), to);
    return builder_.call(from, rule_of(keep(document_.both(target, without(place, "$ref")), place.pointer)), to);
  }
  if (place.has("allOf")) return all_of(place, from, to);
  if (place.has("anyOf") || place.has("oneOf")) return one_of(place, place.has("anyOf") ? "anyOf" : "oneOf", from, to);
  if (place.has("const") || place.has("enum")) return listed(place, from, to);
  const unsigned kinds = kinds_of_type(place);
  if (kinds == kAnyKind && !place.has("type")) return builder_.call(from, json_.any(), to);
  if (kinds & kNull) builder_.literal(from, "null", to);
  if (kinds & kBoolean) {
    builder_.literal(from, "true", to);
    builder_.literal(from, "false", to);
  }
  if (kinds & kNumber) number(place, (kinds & kFraction) != 0, from, to);
  if (kinds & kString) string(place, from, to);
  if (kinds & kArray) array(place, from, to);
  if (kinds & kObject) object(place, from, to);
}

Place SchemaCompiler::without(const Place& place, const char* keyword) {
  OrderedJson rest = *place.schema;
  rest.erase(keyword);
  return keep(std::move(rest), place.pointer);
}

const OrderedJson& SchemaCompiler::list_of(const Place& place, const char* keyword) {
  const OrderedJson& all = *place.find(keyword);
  if (!all.is_array() || all.empty())
    place.at(keyword).refuse("expected a list of at least one schema, found {}", io::shown(all.dump()));
  return all;
}

void SchemaCompiler::all_of(const Place& place, StateId from, StateId to) {
  const std::size_t count = list_of(place, "allOf").size();
  Place all = without(place, "allOf");
  for (std::size_t i = 0; i < count; ++i) {
    const Place part = place.at("allOf").at(std::to_string(i));
    all = keep(document_.both(all, part), part.pointer);
  }
  all.pointer = place.pointer;
  builder_.call(from, rule_of(all), to);
}

void SchemaCompiler::one_of(const Place& place, const char* keyword, StateId from, StateId to) {
  const std::size_t count = list_of(place, keyword).size();
  const Place list = place.at(keyword);
  std::vector<Place> parts;
  for (std::size_t i = 0; i < count; ++i) parts.push_back(list.at(std::to_string(i)));
  if (std::string_view(keyword) == "oneOf")
    for (std::size_t i = 0; i < count; ++i)
      for (std::size_t k = i + 1; k < count; ++k)
        if (!document_.are_apart(parts[i], parts[k]))
          list.refuse(
              "alternatives {} and {} may overlap, so \"oneOf\" cannot be enforced; use \"anyOf\", or give them "
              "different types or a required property of different constants",
              i, k);
  const bool more = restricts_beside(place, keyword);
  const Place rest = more ? without(place, keyword) : place;
  for (const Place& part : parts)
    builder_.call(from, rule_of(more ? keep(document_.both(rest, part), part.pointer) : part), to);
}

void SchemaCompiler::listed(const Place& place, StateId from, StateId to) {
  const char* keyword = place.has("const") ? "const" : "enum";
  const Place list = place.at(keyword);
  std::vector<OrderedJson> values;
  if (place.has("const")) {
    values = {*list.schema};
    if (place.has("enum")) {
      const OrderedJson& all = *place.find("enum");
      if (!all.is_array() || std::find(all.begin(), all.end(), values[0]) == all.end())
        list.refuse("the value is not in the \"enum\" beside it");
    }
  } else {
    if (!list.schema->is_array()) list.refuse("expected a list of values, found {}", list.schema->type_name());
    values.assign(list.schema->begin(), list.schema->end());
    if (values.empty()) list.refuse("expected at least one value; no value meets an empty list");
  }
  const unsigned kinds = place.has("type") ? kinds_of_type(place) : unsigned{kAnyKind};
  std::erase_if(values, [&](const OrderedJson& v) { return (kind_of(v) & kinds) == 0; });
  Place rest = without(without(place, "const"), "enum");
  if (restricts_beside(rest, "type")) keep_those_of(rest, values);
  if (values.empty()) list.refuse("no value of the list meets the keywords beside it");
  std::map<std::string, StateId> ends;  // texts that begin alike share their states
  for (const OrderedJson& v : values)
    if (v.is_structured()) json_.value(from, v, to);
    else builder_.jump(add_text(from, v.dump(), ends), to);
}

StateId SchemaCompiler::add_text(StateId from, const std::string& text, std::map<std::string, StateId>& ends) {
  StateId at = from;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto [it, fresh] = ends.try_emplace(text.substr(0, i + 1), 0);
    if (fresh) {
      it->second = builder_.state();
      builder_.byte(at, text[i], it->second);
    }
    at = it->second;
  }
  return at;
}

/// Keeps the values that a schema allows, as its own machine says.
void SchemaCompiler::keep_those_of(const Place& rest, std::vector<OrderedJson>& values) {
  Builder builder;
  SchemaCompiler compiler(document_, builder);
  const RuleId root = compiler.compile(rest);
  const auto rules = builder.finish(root);
  Automaton automaton(*rules);
  const NodeId start = automaton.start();
  std::erase_if(values, [&](const OrderedJson& v) {
    automaton.renew_budget();
    return !automaton.may_end(automaton.step(start, v.dump()));
  });
}

std::unique_ptr<const Rules> rules_of_schema(std::string_view schema) {
  const SchemaDocument document(schema);
  Builder builder;
  SchemaCompiler compiler(document, builder);
  const RuleId root = compiler.compile(document.root());
  return builder.finish(root);
}

}  // namespace hpcdl::infer::grammar

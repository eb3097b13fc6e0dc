#include "hpcdl/io/jinja/value.h"

#include <algorithm>
#include <stdexcept>

namespace hpcdl::io::jinja {
namespace {

template <class T> const T* held(const Value::Data& data) {
  const auto* p = std::get_if<std::shared_ptr<const T>>(&data);
  return p ? p->get() : nullptr;
}

int deepest(int depth, const Value& value) {
  depth = std::max(depth, value.depth() + 1);
  if (depth > kMaxNesting) throw std::length_error("nested");
  return depth;
}

}  // namespace

const std::string* Value::text() const {
  const auto* t = std::get_if<Text>(&data_);
  return t ? t->text.get() : nullptr;
}

bool Value::safe() const {
  const auto* t = std::get_if<Text>(&data_);
  return t && t->safe;
}

const List* Value::list() const { return held<List>(data_); }
const Dict* Value::dict() const { return held<Dict>(data_); }
const Function* Value::function() const { return held<Function>(data_); }

Namespace* Value::space() const {
  const auto* p = std::get_if<Namespace*>(&data_);
  return p ? *p : nullptr;
}

Loop* Value::loop() const {
  const auto* p = std::get_if<Loop*>(&data_);
  return p ? *p : nullptr;
}

int Value::depth() const {
  if (const List* l = list()) return l->depth;
  if (const Dict* d = dict()) return d->depth;
  return 0;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [k, v] : items)
    if (const std::string* text = k.text(); text && *text == key) return &v;
  return nullptr;
}

Value text_value(std::string text, bool safe) {
  return Value(Text{std::make_shared<const std::string>(std::move(text)), safe});
}

Value missing(std::string_view name) { return undefined_because("'" + std::string(name) + "' is undefined"); }

Value undefined_because(std::string error) {
  return Value(Undefined{std::make_shared<const std::string>(std::move(error))});
}

Value list_value(std::vector<Value> items, Form form) {
  auto list = std::make_shared<List>(List{std::move(items), form, 1});
  for (const Value& v : list->items) list->depth = deepest(list->depth, v);
  return Value(std::shared_ptr<const List>(std::move(list)));
}

Value dict_value(std::vector<std::pair<Value, Value>> items) {
  auto dict = std::make_shared<Dict>(Dict{std::move(items), 1});
  for (const auto& [k, v] : dict->items) dict->depth = deepest(deepest(dict->depth, k), v);
  return Value(std::shared_ptr<const Dict>(std::move(dict)));
}

std::string_view kind_of(const Value& value) {
  static constexpr std::string_view kNames[] = {"undefined", "none", "boolean",  "integer",   "float", "string",
                                                "list",      "dict", "function", "namespace", "loop"};
  const List* list = value.list();
  if (list && list->form != Form::list) return list->form == Form::tuple ? "tuple" : "sequence";
  return kNames[value.data().index()];
}

bool truth(const Value& value) {
  if (value.undefined() || value.none()) return false;
  if (const bool* b = value.boolean()) return *b;
  if (const auto* w = value.whole()) return *w != 0;
  if (const auto* r = value.real()) return *r != 0;
  if (const auto* t = value.text()) return !t->empty();
  if (const List* l = value.list()) return l->form == Form::stream || !l->items.empty();
  if (const Dict* d = value.dict()) return !d->items.empty();
  return true;
}

std::int64_t length_of(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

std::size_t offset_of(std::string_view text, std::int64_t index) {
  std::size_t at = 0;
  while (at < text.size()) {
    if ((static_cast<unsigned char>(text[at]) & 0xC0) != 0x80 && index-- == 0) return at;
    ++at;
  }
  return at;
}

}  // namespace hpcdl::io::jinja

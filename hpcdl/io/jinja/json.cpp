// The filters tojson and from_json: json.dumps and json.loads of Python.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "hpcdl/io/chat_template.h"
#include "hpcdl/io/jinja/call.h"
#include "hpcdl/io/jinja/convert.h"
#include "hpcdl/io/unicode.h"

namespace hpcdl::io::jinja {
namespace {

struct JsonStyle {
  bool ascii = false, sorted = false, lines = false;
  std::string indent, item = ", ", colon = ": ";
};

void write_text(std::string& out, std::string_view text, bool ascii) {
  out += '"';
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t c = next_code_point(text, at);
    const auto escape = [&](char32_t unit) { out += fmt::format("\\u{:04x}", static_cast<unsigned>(unit)); };
    if (c == '"' || c == '\\') out += '\\', out += static_cast<char>(c);
    else if (c == '\n') out += "\\n";
    else if (c == '\r') out += "\\r";
    else if (c == '\t') out += "\\t";
    else if (c == '\b') out += "\\b";
    else if (c == '\f') out += "\\f";
    else if (c < 0x20 || (ascii && c >= 0x7F && c < 0x10000)) escape(c);
    else if (ascii && c >= 0x10000) escape(0xD7C0 + (c >> 10)), escape(0xDC00 + (c & 0x3FF));
    else out += text.substr(begin, at - begin);
  }
  out += '"';
}

class JsonWriter {
 public:
  JsonWriter(Run& run, const JsonStyle& style) : run_(run), style_(style) {}

  void write(const Value& value) {
    const Run::Level level(run_);
    const std::size_t before = out.size();
    if (value.none()) out += "null";
    else if (const bool* b = value.boolean()) out += *b ? "true" : "false";
    else if (const auto* w = value.whole()) out += std::to_string(*w);
    else if (const auto* r = value.real()) out += number(*r);
    else if (const auto* t = value.text()) write_text(out, *t, style_.ascii);
    else if (const List* l = value.list(); l && l->form <= Form::tuple) write_list(*l);
    else if (const Dict* d = value.dict()) write_dict(*d);
    else refuse(value);
    if (!value.list() && !value.dict()) run_.bytes(out.size() - before);
    else run_.steps();
  }

  std::string out;

 private:
  [[noreturn]] void refuse(const Value& value) {
    need_defined(run_, value);
    run_.fail("tojson cannot write a {}",
              value.list() ? "sequence made by a filter; put `| list` after it" : kind_of(value));
  }

  static std::string number(double value) {
    const std::string text = real_text(value);
    if (text == "inf") return "Infinity";
    if (text == "-inf") return "-Infinity";
    return text == "nan" ? "NaN" : text;
  }

  void new_line() {
    if (!style_.lines) return;
    out += '\n';
    for (int i = 0; i < depth_; ++i) out += style_.indent;
    run_.bytes(style_.indent.size() * static_cast<std::size_t>(depth_) + 1);
  }

  template <class Items, class F> void write_items(const Items& items, const char* brackets, const F& write_item) {
    out += brackets[0];
    ++depth_;
    bool first = true;
    for (const auto& item : items) {
      if (!first) out += style_.item;
      first = false;
      new_line();
      write_item(item);
    }
    --depth_;
    if (!first) new_line();
    out += brackets[1];
  }

  void write_list(const List& list) {
    write_items(list.items, "[]", [&](const Value& v) { write(v); });
  }

  void write_key(const Value& key) {
    std::string text;
    if (key.text()) text = *key.text();
    else if (key.none()) text = "null";
    else if (key.boolean()) text = *key.boolean() ? "true" : "false";
    else if (key.number()) text = key.real() ? number(*key.real()) : std::to_string(*key.whole());
    else run_.fail("tojson cannot write a {} as a key", kind_of(key));
    write_text(out, text, style_.ascii);
    out += style_.colon;
  }

  void write_dict(const Dict& dict) {
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sorted)
      std::stable_sort(items.begin(), items.end(),
                       [&](const auto* a, const auto* b) { return compare(run_, a->first, b->first) < 0; });
    write_items(items, "{}", [&](const auto* item) {
      write_key(item->first);
      write(item->second);
    });
  }

  Run& run_;
  const JsonStyle& style_;
  int depth_ = 0;
};

}  // namespace

Value from_ordered_json(Run& run, const OrderedJson& json) {
  const Run::Level level(run);
  if (json.is_null()) return Value(None{});
  if (json.is_boolean()) return Value(json.get<bool>());
  if (json.is_number_float()) return Value(json.get<double>());
  if (json.is_number_unsigned() && json.get<std::uint64_t>() > INT64_MAX) run.fail("a number is larger than 64 bits");
  if (json.is_number()) return Value(json.get<std::int64_t>());
  if (json.is_string()) {
    const auto& text = json.get_ref<const std::string&>();
    if (find_invalid_utf8(text) != std::string::npos) run.fail("a variable holds text that is not UTF-8");
    return run.text(text);
  }
  if (json.is_array()) {
    std::vector<Value> items;
    for (const OrderedJson& item : json) items.push_back(from_ordered_json(run, item));
    return run.list(std::move(items));
  }
  std::vector<std::pair<Value, Value>> items;
  for (const auto& [key, item] : json.items()) items.emplace_back(run.text(key), from_ordered_json(run, item));
  return run.dict(std::move(items));
}

Value to_json(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = truth(args.get(0, "ensure_ascii", Value(false)));
  style.sorted = truth(args.get(3, "sort_keys", Value(false)));
  if (const Value indent = args.get(1, "indent", Value(None{})); !indent.none()) {
    style.lines = true;
    style.item = ",";
    if (indent.text()) style.indent = *indent.text();
    else
      style.indent.assign(static_cast<std::size_t>(std::clamp<std::int64_t>(need_whole(run, indent, "indent"), 0, 64)),
                          ' ');
  }
  if (const Value two = args.get(2, "separators", Value(None{})); !two.none()) {
    const std::vector<Value> items = items_of(run, two);
    if (items.size() != 2) run.fail("separators are {} values; expected 2", items.size());
    style.item = need_text(run, items[0], "a separator");
    style.colon = need_text(run, items[1], "a separator");
  }
  JsonWriter writer(run, style);
  writer.write(value);
  return text_value(std::move(writer.out));
}

Value from_json(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {});
  const std::string& text = need_text(run, value, "the value of from_json");
  return from_ordered_json(run, parse_ordered_json(text, fmt::format("the value of from_json in line {}", run.line)));
}

}  // namespace hpcdl::io::jinja

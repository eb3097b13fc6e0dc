// str() and repr().
#include <utf8proc.h>

#include "hpcdl/io/jinja/operators.h"
#include "hpcdl/io/unicode.h"

namespace hpcdl::io::jinja {
namespace {

bool printable(char32_t point) {
  if (point == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(point))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
  }
}

std::string in_quotes(std::string_view text) {
  const bool single = text.find('\'') == std::string_view::npos || text.find('"') != std::string_view::npos;
  const char quote = single ? '\'' : '"';
  std::string out(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t c = next_code_point(text, at);
    if (c == static_cast<char32_t>(quote) || c == '\\') out += '\\', out += static_cast<char>(c);
    else if (c == '\n') out += "\\n";
    else if (c == '\r') out += "\\r";
    else if (c == '\t') out += "\\t";
    else if (printable(c)) out += text.substr(begin, at - begin);
    else if (c < 0x100) out += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    else if (c < 0x10000) out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else out += fmt::format("\\U{:08x}", static_cast<unsigned>(c));
  }
  return out + quote;
}

std::string repr_list(Run& run, const List& list) {
  if (list.form == Form::stream || list.form == Form::view)
    run.fail("a sequence made by a filter or by items() is printed; put `| list` after it");
  std::string out(1, list.form == Form::tuple ? '(' : '[');
  for (const Value& v : list.items) {
    if (out.size() > 1) out += ", ";
    out += repr(run, v);
  }
  if (list.form == Form::tuple) return out + (list.items.size() == 1 ? ",)" : ")");
  return out + "]";
}

std::string repr_dict(Run& run, const Dict& dict) {
  std::string out = "{";
  for (const auto& [k, v] : dict.items) {
    if (out.size() > 1) out += ", ";
    out += repr(run, k) + ": ";
    out += repr(run, v);
  }
  return out + "}";
}

}  // namespace

std::string str(Run& run, const Value& value) {
  run.steps();
  if (const std::string* t = value.text()) return run.bytes(t->size()), *t;
  if (value.undefined()) return {};
  return repr(run, value);
}

std::string repr(Run& run, const Value& value) {
  const Run::Level level(run);
  std::string out;
  if (value.undefined()) out = "Undefined";
  else if (value.none()) out = "None";
  else if (const bool* b = value.boolean()) out = *b ? "True" : "False";
  else if (const auto* w = value.whole()) out = std::to_string(*w);
  else if (const auto* r = value.real()) out = real_text(*r);
  else if (const auto* t = value.text()) out = in_quotes(*t);
  else if (const List* l = value.list()) out = repr_list(run, *l);
  else if (const Dict* d = value.dict()) out = repr_dict(run, *d);
  else run.fail("a {} is printed; only values can be", kind_of(value));
  run.bytes(out.size());
  return out;
}

}  // namespace hpcdl::io::jinja

#include "hpcdl/io/config_value.h"

#include <fmt/format.h>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>

#include "hpcdl/io/unicode.h"

namespace hpcdl::io {
namespace {

struct Suffix {
  std::string_view word;
  double factor;
};
constexpr double kKibi = 1024;
constexpr Suffix kBytes[] = {{"", 1},
                             {"B", 1},
                             {"K", kKibi},
                             {"KiB", kKibi},
                             {"M", kKibi* kKibi},
                             {"MiB", kKibi* kKibi},
                             {"G", kKibi* kKibi* kKibi},
                             {"GiB", kKibi* kKibi* kKibi},
                             {"T", kKibi* kKibi* kKibi* kKibi},
                             {"TiB", kKibi* kKibi* kKibi* kKibi},
                             {"KB", 1e3},
                             {"kB", 1e3},
                             {"MB", 1e6},
                             {"GB", 1e9},
                             {"TB", 1e12}};
constexpr Suffix kSeconds[] = {{"", 1}, {"ms", 1e-3}, {"s", 1}, {"m", 60}, {"min", 60}, {"h", 3600}, {"d", 86400}};
constexpr Suffix kPlain[] = {{"", 1}};

std::span<const Suffix> suffixes(Unit unit) {
  if (unit == Unit::bytes) return kBytes;
  if (unit == Unit::seconds) return kSeconds;
  return kPlain;
}

/// Removes the underscores between digits that TOML allows.
std::string without_underscores(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](std::size_t k) { return k < text.size() && text[k] >= '0' && text[k] <= '9'; };
    if (text[i] != '_' || i == 0 || !digit(i - 1) || !digit(i + 1)) out += text[i];
  }
  return out;
}

std::optional<double> number_in(std::string_view raw, Unit unit) {
  const std::string text = without_underscores(raw);
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  double v = 0;
  const auto [end, code] = std::from_chars(begin, text.data() + text.size(), v);
  if (code != std::errc()) return std::nullopt;
  const std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
  for (const auto& s : suffixes(unit))
    if (s.word == rest) return v * s.factor;
  return std::nullopt;
}

template <class Int> std::optional<Int> whole(double v) {
  // The largest doubles below 2^63 and 2^64 are whole; the limits themselves do not fit.
  const double limit = std::is_signed_v<Int> ? 0x1p63 : 0x1p64;
  const double least = std::is_signed_v<Int> ? -0x1p63 : 0;
  return std::trunc(v) == v && v >= least && v < limit ? std::optional(static_cast<Int>(v)) : std::nullopt;
}

const std::string* text_of(const ConfigValue& v) {
  if (const auto* t = std::get_if<ConfigText>(&v)) return &t->text;
  return std::get_if<std::string>(&v);
}

/// Bytes that are not UTF-8 could not be saved as TOML and read again.
const std::string& in_utf8(const std::string& text) {
  if (find_invalid_utf8(text) == std::string::npos) return text;
  throw ConfigMismatch{shown(text) + ", which is not UTF-8"};
}

std::vector<std::string> strings_of(const ConfigValue& v) {
  if (const auto* list = std::get_if<std::vector<std::string>>(&v)) return *list;
  if (const auto* one = std::get_if<std::string>(&v)) return {*one};
  const auto* t = std::get_if<ConfigText>(&v);
  if (!t) throw ConfigMismatch{describe(v)};
  std::vector<std::string> out;
  if (t->text.starts_with('[')) {  // as in a file
    const auto list = Json::parse(t->text, nullptr, false);
    if (!list.is_array()) throw ConfigMismatch{describe(v)};
    for (const auto& item : list) {
      if (!item.is_string()) throw ConfigMismatch{describe(v)};
      out.push_back(item.get<std::string>());
    }
    return out;
  }
  for (std::size_t at = 0; at < t->text.size();) {
    const std::size_t comma = std::min(t->text.find(',', at), t->text.size());
    out.push_back(t->text.substr(at, comma - at));
    at = comma + 1;
  }
  return out;
}

template <class Int> Int read_whole(const ConfigValue& v, Unit unit) {
  if (const auto* n = std::get_if<std::int64_t>(&v); n && std::in_range<Int>(*n)) return static_cast<Int>(*n);
  if (const auto* d = std::get_if<double>(&v))
    if (const auto n = whole<Int>(*d)) return *n;
  // Numbers in quotes: 64-bit values beyond the range of TOML, and those with a unit.
  if (const auto* text = text_of(v)) {
    const std::string digits = without_underscores(*text);
    Int n = 0;
    const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
    if (code == std::errc() && end == digits.data() + digits.size()) return n;
    if (const auto d = number_in(*text, unit))
      if (const auto w = whole<Int>(*d)) return *w;
  }
  throw ConfigMismatch{describe(v)};
}

}  // namespace

std::string describe(const ConfigValue& v) {
  struct {
    std::string operator()(bool b) const { return b ? "true" : "false"; }
    std::string operator()(std::int64_t n) const { return fmt::format("{}", n); }
    std::string operator()(double n) const { return toml_number(n); }
    std::string operator()(const std::string& s) const { return "the string " + shown(s); }
    std::string operator()(const std::vector<std::string>& a) const { return fmt::format("an array of {}", a.size()); }
    std::string operator()(const std::vector<std::int64_t>& a) const { return fmt::format("an array of {}", a.size()); }
    std::string operator()(const ConfigText& t) const { return shown(t.text); }
  } words;
  return std::visit(words, v);
}

bool read_bool(const ConfigValue& v) {
  if (const auto* b = std::get_if<bool>(&v)) return *b;
  if (const auto* t = std::get_if<ConfigText>(&v)) {
    if (t->text == "true" || t->text == "1" || t->text == "yes" || t->text == "on") return true;
    if (t->text == "false" || t->text == "0" || t->text == "no" || t->text == "off") return false;
  }
  throw ConfigMismatch{describe(v)};
}

std::int64_t read_integer(const ConfigValue& v, Unit unit) { return read_whole<std::int64_t>(v, unit); }
std::uint64_t read_unsigned(const ConfigValue& v, Unit unit) { return read_whole<std::uint64_t>(v, unit); }

double read_number(const ConfigValue& v, Unit unit) {
  if (const auto* n = std::get_if<std::int64_t>(&v)) return static_cast<double>(*n);
  if (const auto* d = std::get_if<double>(&v)) return *d;
  const auto* text = text_of(v);
  if (text && (unit != Unit::none || std::holds_alternative<ConfigText>(v)))
    if (const auto d = number_in(*text, unit)) return *d;
  throw ConfigMismatch{describe(v)};
}

std::string read_string(const ConfigValue& v) {
  if (const auto* text = text_of(v)) return in_utf8(*text);
  throw ConfigMismatch{describe(v)};
}

std::vector<std::string> read_strings(const ConfigValue& v) {
  auto list = strings_of(v);
  for (const auto& text : list) in_utf8(text);
  return list;
}

std::vector<std::int64_t> read_integers(const ConfigValue& v) {
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(&v)) return *list;
  std::vector<std::int64_t> out;
  if (const auto* t = std::get_if<ConfigText>(&v); t && t->text.starts_with('[')) {  // as in a file
    const auto list = Json::parse(t->text, nullptr, false);
    if (!list.is_array()) throw ConfigMismatch{describe(v)};
    for (const auto& item : list) {
      if (!item.is_number_integer()) throw ConfigMismatch{describe(v)};
      out.push_back(item.get<std::int64_t>());
    }
    return out;
  }
  for (const auto& word : strings_of(v)) out.push_back(read_integer(ConfigText{word}, Unit::none));
  return out;
}

Every read_every(const ConfigValue& v, const FieldOptions& o) {
  const auto steps = [&](std::int64_t n) {
    if (n < 0 || !in_range(n, o)) throw ConfigMismatch{describe(v)};
    return Every(n);
  };
  const auto* text = text_of(v);
  if (!text) return steps(read_integer(v, Unit::none));
  if (number_in(*text, Unit::none)) return steps(read_integer(v, Unit::none));
  const auto seconds = number_in(*text, Unit::seconds);
  if (!seconds || !(*seconds >= 0 && std::isfinite(*seconds))) throw ConfigMismatch{describe(v)};
  return Every::time(*seconds);
}

std::string toml_every(const Every& v) {
  if (v.seconds == 0) return fmt::format("{}", v.steps);
  for (const auto& [unit, factor] : {Suffix{"d", 86400}, {"h", 3600}, {"m", 60}})
    if (std::fmod(v.seconds, factor) == 0) return fmt::format("\"{}{}\"", v.seconds / factor, unit);
  return fmt::format("\"{}s\"", v.seconds);
}

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\', out += c;
    else if (c == '\n') out += "\\n";
    else if (c == '\t') out += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      out += fmt::format("\\u{:04X}", static_cast<unsigned>(c));
    else out += c;
  }
  return out + '"';
}

namespace {
template <class F> std::string shortest(F v) {
  if (std::isinf(v)) return v > 0 ? "inf" : "-inf";
  if (std::isnan(v)) return "nan";
  std::string text = fmt::format("{}", v);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}
}  // namespace

std::string toml_number(double v) { return shortest(v); }
std::string toml_number(float v) { return shortest(v); }

Json schema_of(const ConfigType& type) {
  using Kind = ConfigType::Kind;
  const auto& o = type.options;
  switch (type.kind) {
    case Kind::boolean: return {{"type", "boolean"}};
    case Kind::word: return {{"enum", type.words}};
    case Kind::text: return {{"type", "string"}};
    case Kind::every: return {{"type", Json::array({"integer", "string"})}, {"minimum", 0}};
    case Kind::texts: return {{"type", Json::array({"array", "string"})}, {"items", {{"type", "string"}}}};
    case Kind::integers: return {{"type", Json::array({"array", "string"})}, {"items", {{"type", "integer"}}}};
    case Kind::integer:
    case Kind::number: break;
  }
  const char* kind = type.kind == Kind::integer ? "integer" : "number";
  Json out = {{"type", kind}};
  if (o.unit != Unit::none) out["type"] = Json::array({kind, "string"});
  if (o.has_min()) out["minimum"] = o.min;
  if (o.has_max()) out["maximum"] = o.max;
  return out;
}

std::string describe_type(const ConfigType& type) {
  using Kind = ConfigType::Kind;
  const auto& o = type.options;
  if (type.kind == Kind::word) return fmt::format("one of {}", fmt::join(type.words, ", "));
  if (type.kind == Kind::boolean) return "true or false";
  if (type.kind == Kind::text) return "a string";
  if (type.kind == Kind::every) return "a number of steps such as 500, or a time such as 10m or 2h; 0: never";
  if (type.kind == Kind::texts) return "a list of strings";
  if (type.kind == Kind::integers) return "a list of integers";
  std::string out = type.kind == Kind::integer ? "an integer" : "a number";
  if (o.unit == Unit::bytes) out = "a size such as 16G or 25MiB";
  if (o.unit == Unit::seconds) out = "a time such as 30s or 10m";
  if (o.has_min()) out += fmt::format(" >= {}", o.min);
  if (o.has_max()) out += fmt::format("{} <= {}", o.has_min() ? " and" : "", o.max);
  return out;
}

}  // namespace hpcdl::io

#pragma once
// Values from a source (file, environment, command line), and their conversion to the type of a field.

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/io/config_visitor.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/nearest.h"

namespace hpcdl::io {

/// `Text` is a word from the command line or environment, where every type is spelled as text; std::string is a quoted
/// string of a file.
struct ConfigText {
  std::string text;
};
using ConfigValue = std::variant<bool, std::int64_t, double, std::string, std::vector<std::string>,
                                 std::vector<std::int64_t>, ConfigText>;

/// Describes the value for messages: `the string "x"`.
std::string describe(const ConfigValue& v);

// The readers below throw ConfigMismatch; the table adds which key and which source.
struct ConfigMismatch {
  std::string found;
};
bool read_bool(const ConfigValue& v);
std::int64_t read_integer(const ConfigValue& v, Unit unit);
std::uint64_t read_unsigned(const ConfigValue& v, Unit unit);
double read_number(const ConfigValue& v, Unit unit);
std::string read_string(const ConfigValue& v);
std::vector<std::string> read_strings(const ConfigValue& v);
std::vector<std::int64_t> read_integers(const ConfigValue& v);
Every read_every(const ConfigValue& v, const FieldOptions& o);

std::string toml_string(std::string_view text);
/// Shortest text that reads back as the same value, always with a point or exponent.
std::string toml_number(double v);
std::string toml_number(float v);
std::string toml_every(const Every& v);

template <class T> struct IsOptional : std::false_type {};
template <class T> struct IsOptional<std::optional<T>> : std::true_type {};

template <class T> constexpr bool in_range(T v, const FieldOptions& o) {
  return static_cast<double>(v) >= o.min &&
         static_cast<double>(v) <= o.max;  // false for NaN: a NaN setting is a mistake
}

/// Reads `v` as a T within `o`; throws ConfigMismatch.
template <class T> T convert_config(const ConfigValue& v, const FieldOptions& o) {
  if constexpr (IsOptional<T>::value) {
    if (const auto* t = std::get_if<ConfigText>(&v); t && (t->text == "none" || t->text.empty())) return std::nullopt;
    return convert_config<typename T::value_type>(v, o);
  } else if constexpr (std::is_same_v<T, bool>) {
    return read_bool(v);
  } else if constexpr (std::is_same_v<T, Every>) {
    return read_every(v, o);
  } else if constexpr (std::is_enum_v<T>) {
    const std::string word = read_string(v);
    if (const auto value = enum_of<T>(word)) return *value;
    throw ConfigMismatch{describe(v) + did_you_mean(word, enum_words<T>())};
  } else if constexpr (std::is_same_v<T, std::uint64_t>) {
    const auto n = read_unsigned(v, o.unit);
    if (!in_range(n, o)) throw ConfigMismatch{describe(v)};
    return n;
  } else if constexpr (std::is_integral_v<T>) {
    const auto n = read_integer(v, o.unit);
    if (!std::in_range<T>(n) || !in_range(n, o)) throw ConfigMismatch{describe(v)};
    return static_cast<T>(n);
  } else if constexpr (std::is_floating_point_v<T>) {
    const double n = read_number(v, o.unit);
    if (!in_range(n, o)) throw ConfigMismatch{describe(v)};
    return static_cast<T>(n);
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return read_strings(v);
  } else if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) {
    auto list = read_integers(v);
    for (const auto n : list)
      if (!in_range(n, o)) throw ConfigMismatch{fmt::format("{} in a list", n)};
    return list;
  } else {
    return T(read_string(v));  // std::string, path
  }
}

/// The value as TOML; "" for an absent optional.
template <class T> std::string config_toml(const T& v) {
  if constexpr (IsOptional<T>::value) return v ? config_toml(*v) : "";
  else if constexpr (std::is_same_v<T, bool>) return v ? "true" : "false";
  else if constexpr (std::is_same_v<T, Every>) return toml_every(v);
  else if constexpr (std::is_enum_v<T>) return toml_string(enum_name(v));
  else if constexpr (std::is_same_v<T, std::uint64_t>)  // TOML integers end at 2^63
    return v > INT64_MAX ? fmt::format("\"{}\"", v) : fmt::format("{}", v);
  else if constexpr (std::is_integral_v<T>) return fmt::format("{}", v);
  else if constexpr (std::is_floating_point_v<T>) return toml_number(v);
  else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    std::string out = "[";
    for (const auto& s : v) out += (out.size() > 1 ? ", " : "") + toml_string(s);
    return out + "]";
  } else if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) {
    std::string out = "[";
    for (const auto n : v) out += fmt::format("{}{}", out.size() > 1 ? ", " : "", n);
    return out + "]";
  } else return toml_string(std::string(v));
}

/// Describes what a field accepts, without its type.
struct ConfigType {
  enum class Kind { boolean, integer, number, every, word, text, texts, integers };
  Kind kind = Kind::text;
  FieldOptions options = {};            // for an integer, a number, or each of a list; for the steps of Every
  std::vector<std::string> words = {};  // the allowed words
};

template <class T> ConfigType config_type(const FieldOptions& o) {
  using Kind = ConfigType::Kind;
  if constexpr (IsOptional<T>::value) return config_type<typename T::value_type>(o);
  else if constexpr (std::is_same_v<T, bool>) return {.kind = Kind::boolean};
  else if constexpr (std::is_same_v<T, Every>) return {.kind = Kind::every, .options = o};
  else if constexpr (std::is_enum_v<T>) return {.kind = Kind::word, .words = enum_words<T>()};
  else if constexpr (std::is_arithmetic_v<T>)
    return {.kind = std::is_integral_v<T> ? Kind::integer : Kind::number, .options = o};
  else if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) return {.kind = Kind::integers, .options = o};
  else return {.kind = std::is_same_v<T, std::vector<std::string>> ? Kind::texts : Kind::text};
}

/// As JSON Schema.
Json schema_of(const ConfigType& type);
/// In words: "an integer >= 1", "one of gpt2, llama".
std::string describe_type(const ConfigType& type);

}  // namespace hpcdl::io

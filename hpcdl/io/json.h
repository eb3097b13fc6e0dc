#pragma once
// JSON from files that cannot be trusted: bounded depth, no duplicate keys, errors that name the file.

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "hpcdl/core/error.h"
#include "hpcdl/io/file.h"

namespace hpcdl::io {

using Json = nlohmann::json;

/// Parses `text`; `where` names its source in errors. Throws Error on bad syntax, nesting beyond `max_depth`, or a key
/// that appears twice in one object (two readers would not agree which one counts).
Json parse_json(std::string_view text, std::string_view where, int max_depth = 64);
/// Describes the position at which a parser stopped, from its byte, counted from 1: "a mistake in line 3, column 7,
/// after ...".
std::string json_mistake(std::string_view text, std::size_t byte);
Json read_json(const fs::path& path, std::int64_t limit = std::int64_t{256} << 20, int max_depth = 64);

/// The text in quotes, escaped and shortened for a message.
std::string shown(std::string_view text, std::size_t limit = 80);
/// The kind of a value in words: "string", "number", "object", ...
std::string_view json_kind(const Json& value);

/// Typed access to the keys of one object, with errors in plain words: bool, std::int64_t, std::uint64_t, double,
/// std::string. A null value counts as absent.
class JsonObject {
 public:
  /// Throws Error if `value` is not an object. Both must outlive this.
  JsonObject(const Json& value, std::string where);
  const Json* find(const char* key) const;
  /// Whether the key is there, with null too.
  bool has(const char* key) const;
  template <class T> std::optional<T> get(const char* key) const {
    const Json* value = find(key);
    return value ? std::optional<T>(convert<T>(*value, key)) : std::nullopt;
  }
  template <class T> T get_or(const char* key, T fallback) const { return get<T>(key).value_or(std::move(fallback)); }
  template <class T> T need(const char* key) const {
    const Json* value = find(key);
    require(value != nullptr, "io", "{}: expected key \"{}\", found none", where_, key);
    return convert<T>(*value, key);
  }
  const std::string& where() const { return where_; }

 private:
  template <class T> T convert(const Json& value, const char* key) const;
  [[noreturn]] void wrong_type(const char* key, std::string_view expected, const Json& value) const;
  const Json& value_;
  std::string where_;
};

extern template bool JsonObject::convert<bool>(const Json&, const char*) const;
extern template std::int64_t JsonObject::convert<std::int64_t>(const Json&, const char*) const;
extern template std::uint64_t JsonObject::convert<std::uint64_t>(const Json&, const char*) const;
extern template double JsonObject::convert<double>(const Json&, const char*) const;
extern template std::string JsonObject::convert<std::string>(const Json&, const char*) const;

}  // namespace hpcdl::io

#pragma once
// JSON from files that nobody vouches for: bounded depth, no duplicate keys, errors that name the file.

#include <nlohmann/json.hpp>
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
Json read_json(const fs::path& path, std::int64_t limit = std::int64_t{256} << 20, int max_depth = 64);

/// In quotes, escaped and cut to a length fit for a message.
std::string shown(std::string_view text, std::size_t limit = 80);
/// The kind of a value in words: "string", "number", "object", ...
std::string_view json_kind(const Json& value);

/// Typed access to the keys of one object, with errors in plain words. A null value counts as absent.
class JsonObject {
 public:
  /// Throws Error when `value` is no object. Both must outlive this.
  JsonObject(const Json& value, std::string where);
  const Json* find(const char* key) const;
  template <class T>
  std::optional<T> get(const char* key) const {
    const Json* value = find(key);
    return value ? std::optional<T>(convert<T>(*value, key)) : std::nullopt;
  }
  template <class T>
  T get_or(const char* key, T fallback) const {
    return get<T>(key).value_or(std::move(fallback));
  }
  template <class T>
  T need(const char* key) const {
    const Json* value = find(key);
    require(value != nullptr, "io", "{}: expected key \"{}\", found none", where_, key);
    return convert<T>(*value, key);
  }
  const std::string& where() const { return where_; }

 private:
  template <class T>
  T convert(const Json& value, const char* key) const;
  [[noreturn]] void wrong_type(const char* key, std::string_view expected, const Json& value) const;
  const Json& value_;
  std::string where_;
};

template <class T>
T JsonObject::convert(const Json& value, const char* key) const {
  if constexpr (std::is_same_v<T, bool>) {
    if (!value.is_boolean()) wrong_type(key, "true or false", value);
  } else if constexpr (std::is_same_v<T, std::uint64_t>) {
    if (!value.is_number_unsigned()) wrong_type(key, "a whole number >= 0", value);
  } else if constexpr (std::is_integral_v<T>) {
    static_assert(sizeof(T) == 8, "read as 64 bits, then check the range");
    if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX))
      wrong_type(key, "a whole number", value);
  } else if constexpr (std::is_floating_point_v<T>) {
    if (!value.is_number()) wrong_type(key, "a number", value);
  } else {
    static_assert(std::is_same_v<T, std::string>);
    if (!value.is_string()) wrong_type(key, "a string", value);
  }
  return value.get<T>();
}

}  // namespace hpcdl::io

#include "hpcdl/io/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

namespace hpcdl::io {

std::string shown(std::string_view text, std::size_t limit) {
  const bool cut = text.size() > limit;
  std::string out = Json(std::string(text.substr(0, limit))).dump(-1, ' ', true, Json::error_handler_t::replace);
  return cut ? out + fmt::format("... ({} bytes)", text.size()) : out;
}

std::string_view json_kind(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null: return "null";
    case Json::value_t::object: return "object";
    case Json::value_t::array: return "array";
    case Json::value_t::string: return "string";
    case Json::value_t::boolean: return "boolean";
    case Json::value_t::number_float: return "fraction";
    default: return "number";
  }
}

std::string json_mistake(std::string_view text, std::size_t byte) {
  constexpr std::size_t kShown = 30;
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) return "an empty file";
  const auto end = std::min(byte == 0 ? 0 : byte - 1, text.size());
  const auto before = text.substr(0, end);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const auto begin = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  const auto place = fmt::format("in line {}, column {}", line, end - begin + 1);
  if (end == text.size()) return fmt::format("the end {} before all brackets and strings were closed", place);
  const auto tail = before.substr(std::max(begin, end - std::min(end, kShown)));
  return fmt::format("a mistake {}{}", place, tail.empty() ? "" : ", after " + shown(tail));
}

Json parse_json(std::string_view text, std::string_view where, int max_depth) {
  std::vector<std::unordered_set<std::string>> keys;  // of every open object
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    using Event = Json::parse_event_t;
    require(depth <= max_depth, "io", "{}: expected JSON nested at most {} deep, found more", where, max_depth);
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key) {
      const auto& name = value.get_ref<const std::string&>();
      require(keys.back().insert(name).second, "io", "{}: key {} appears twice in one object", where, shown(name));
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::parse_error& e) {
    fail("io", "{}: expected JSON, found {}", where, json_mistake(text, e.byte));
  } catch (const Json::exception&) {
    fail("io", "{}: expected JSON, found a number that is too large", where);
  }
}

Json read_json(const fs::path& path, std::int64_t limit, int max_depth) {
  return parse_json(read_file(path, limit), path.string(), max_depth);
}

JsonObject::JsonObject(const Json& value, std::string where) : value_(value), where_(std::move(where)) {
  require(value.is_object(), "io", "{}: expected a JSON object, found {}", where_, json_kind(value));
}

bool JsonObject::has(const char* key) const { return value_.contains(key); }

const Json* JsonObject::find(const char* key) const {
  const auto it = value_.find(key);
  return it == value_.end() || it->is_null() ? nullptr : &*it;
}

void JsonObject::wrong_type(const char* key, std::string_view expected, const Json& value) const {
  constexpr std::size_t kShown = 80;
  const std::string found = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  fail("io", "{}: key \"{}\": expected {}, found {} {}{}", where_, key, expected, json_kind(value),
       found.substr(0, kShown), found.size() > kShown ? "..." : "");
}

template <class T> T JsonObject::convert(const Json& value, const char* key) const {
  if constexpr (std::is_same_v<T, bool>) {
    if (!value.is_boolean()) wrong_type(key, "true or false", value);
  } else if constexpr (std::is_same_v<T, std::uint64_t>) {
    if (!value.is_number_unsigned()) wrong_type(key, "a whole number >= 0", value);
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX))
      wrong_type(key, "a whole number", value);
  } else if constexpr (std::is_same_v<T, double>) {
    if (!value.is_number()) wrong_type(key, "a number", value);
  } else {
    static_assert(std::is_same_v<T, std::string>);
    if (!value.is_string()) wrong_type(key, "a string", value);
  }
  return value.get<T>();
}

template bool JsonObject::convert<bool>(const Json&, const char*) const;
template std::int64_t JsonObject::convert<std::int64_t>(const Json&, const char*) const;
template std::uint64_t JsonObject::convert<std::uint64_t>(const Json&, const char*) const;
template double JsonObject::convert<double>(const Json&, const char*) const;
template std::string JsonObject::convert<std::string>(const Json&, const char*) const;

}  // namespace hpcdl::io

#include "hpcdl/serve/fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hpcdl/io/json.h"
#include "hpcdl/io/nearest.h"
#include "hpcdl/serve/openai.h"

namespace hpcdl::serve {

Fields::Fields(const Json& value, std::string where) : value_(value), where_(std::move(where)) {
  if (!value.is_object())
    throw Refusal(400, fmt::format("{}: expected an object, found {}", where_, value.type_name()));
}

const Json* Fields::find(const char* name) {
  known_.emplace_back(name);
  const auto it = value_.find(name);
  return it == value_.end() || it->is_null() ? nullptr : &*it;
}

void Fields::wrong(const std::string& name, const std::string& expected, const Json& found) const {
  const auto text = found.dump(-1, ' ', false, Json::error_handler_t::replace);
  throw Refusal(400, fmt::format("{}: \"{}\": expected {}, found {}", where_, name, expected,
                                 found.is_primitive() && text.size() <= 80 ? text : std::string(found.type_name())));
}

bool Fields::flag(const char* name, bool otherwise) {
  const auto* v = find(name);
  if (!v) return otherwise;
  if (!v->is_boolean()) wrong(name, "true or false", *v);
  return v->get<bool>();
}

std::optional<std::int64_t> Fields::integer(const char* name, std::int64_t least, std::int64_t most) {
  const auto* v = find(name);
  if (!v) return std::nullopt;
  const auto expected = fmt::format("an integer from {} to {}", least, most);
  if (!v->is_number_integer()) wrong(name, expected, *v);
  if (v->is_number_unsigned() && v->get<std::uint64_t>() > std::uint64_t{INT64_MAX}) wrong(name, expected, *v);
  const auto n = v->get<std::int64_t>();
  if (n < least || n > most) wrong(name, expected, *v);
  return n;
}

std::optional<double> Fields::number(const char* name, double least, double most) {
  const auto* v = find(name);
  if (!v) return std::nullopt;
  if (!v->is_number() || !(v->get<double>() >= least && v->get<double>() <= most))
    wrong(name, fmt::format("a number from {} to {}", least, most), *v);
  return v->get<double>();
}

std::optional<std::string> Fields::text(const char* name) {
  const auto* v = find(name);
  if (!v) return std::nullopt;
  if (!v->is_string()) wrong(name, "a string", *v);
  return v->get<std::string>();
}

void Fields::end() const {
  for (const auto& [key, value] : value_.items())
    if (!value.is_null() && std::find(known_.begin(), known_.end(), key) == known_.end())
      throw Refusal(400, fmt::format("{}: unknown field {}{}", where_, io::shown(key), io::did_you_mean(key, known_)),
                    "unknown_field");
}

}  // namespace hpcdl::serve

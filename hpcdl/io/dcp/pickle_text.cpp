#include "hpcdl/io/dcp/pickle_text.h"

#include "hpcdl/io/dcp/little_endian.h"

namespace hpcdl::io::dcp::pickled {
std::string integer(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  if (value >= 0 && value < 256) return "K" + little_endian(bits, 1);
  if (value == static_cast<std::int32_t>(value)) return "J" + little_endian(bits, 4);
  return "\x8a\x08" + little_endian(bits, 8);
}

std::string text(std::string_view value) { return "X" + little_endian(value.size(), 4) + std::string(value); }

std::string boolean(bool value) { return value ? "\x88" : "\x89"; }

std::string global(std::string_view module, std::string_view name) {
  return "c" + std::string(module) + "\n" + std::string(name) + "\n";
}

std::string tuple(std::initializer_list<std::string> items) {
  std::string s = "(";
  for (const auto& item : items) s += item;
  return s + "t";
}

std::string tuple(std::span<const std::int64_t> items) {
  std::string s = "(";
  for (const auto item : items) s += integer(item);
  return s + "t";
}

std::string list(const std::vector<std::string>& items) {
  std::string s = "](";
  for (const auto& item : items) s += item;
  return s + "e";
}

std::string dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string s = "}(";
  for (const auto& [key, value] : items) s += key + value;
  return s + "u";
}

std::string call(std::string_view function, std::string_view arguments) {
  return std::string(function) + std::string(arguments) + "R";
}

std::string object(std::string_view type, const std::vector<std::pair<std::string, std::string>>& attributes) {
  std::vector<std::pair<std::string, std::string>> items;
  for (const auto& [name, value] : attributes) items.emplace_back(text(name), value);
  return std::string(type) + ")\x81" + dict(items) + "b";
}

std::string persistent(std::string_view id) { return std::string(id) + "Q"; }

std::string document(std::string_view value) { return "\x80\x02" + std::string(value) + "."; }

}  // namespace hpcdl::io::dcp::pickled

// The only file that knows toml++ (header-only here, so that nothing is linked).

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#endif
#define TOML_EXCEPTIONS 1
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

#include "hpcdl/io/config_table.h"

namespace hpcdl::io {
namespace {

constexpr std::int64_t kLargestFile = 16 << 20;

std::string_view kind_of(const toml::node& n) {
  if (n.is_table()) return "a table";
  if (n.is_array()) return "an array";
  return "a date or time";
}

/// Nothing for what no field can hold.
std::optional<ConfigValue> value_of(const toml::node& n) {
  if (const auto* v = n.as_boolean()) return v->get();
  if (const auto* v = n.as_integer()) return v->get();
  if (const auto* v = n.as_floating_point()) return v->get();
  if (const auto* v = n.as_string()) return v->get();
  const auto* array = n.as_array();
  if (!array) return std::nullopt;
  std::vector<std::string> items;
  for (const auto& item : *array) {
    const auto* s = item.as_string();
    if (!s) return std::nullopt;
    items.push_back(s->get());
  }
  return items;
}

void apply_table(ConfigTable& config, const toml::table& table, const std::string& prefix, const std::string& name) {
  for (const auto& [key, node] : table) {
    const std::string full = prefix + std::string(key.str());
    const std::string origin = fmt::format("{}:{}", name, key.source().begin.line);
    if (const auto* inner = node.as_table(); inner && config.is_section(full)) {
      apply_table(config, *inner, full + ".", name);
    } else if (const auto value = value_of(node)) {
      config.set(full, *value, origin);
    } else if (const auto* field = config.find(full)) {
      fail_usage("config", "{}: {}: expected {}, found {}", origin, field->key, field->type, kind_of(node));
    } else {
      config.set(full, ConfigText{}, origin);  // unknown: the error of every unknown key
    }
  }
}

}  // namespace

void ConfigTable::apply_toml(std::string_view text, const std::string& name) {
  toml::table table;
  try {
    table = toml::parse(text, name);
  } catch (const toml::parse_error& e) {
    fail_usage("config", "{}:{}: no valid TOML: {}", name, e.source().begin.line, e.description().substr(0, 300));
  }
  apply_table(*this, table, "", name);
}

void ConfigTable::apply_file(const fs::path& path) { apply_toml(read_file(path, kLargestFile), path.string()); }

}  // namespace hpcdl::io

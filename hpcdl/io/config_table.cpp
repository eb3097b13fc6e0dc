#include "hpcdl/io/config_table.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "hpcdl/io/nearest.h"

namespace hpcdl::io {
namespace {

std::string normal(std::string_view key) {
  std::string out(key);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

std::string section_of(const std::string& key) {
  const auto dot = key.rfind('.');
  return dot == std::string::npos ? "" : key.substr(0, dot);
}

constexpr std::string_view kPrefix = "HPCDL_";

std::string environment_name(const std::string& key) {
  std::string out = std::string(kPrefix) + key;
  for (char& c : out) c = c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

/// Whether the name of a value's origin contains the key: that of an option or a variable does, that of a file does
/// not.
bool says_key(const std::string& origin, std::string_view key) {
  const std::string name(key);
  return normal(origin) == normal("--" + name) || origin == environment_name(name);
}

/// Sections in order of appearance, top level first, because TOML needs plain keys before tables.
std::vector<std::string> sections_of(const std::vector<ConfigField>& fields) {
  std::vector<std::string> out = {""};
  for (const auto& f : fields)
    if (std::find(out.begin(), out.end(), section_of(f.key)) == out.end()) out.push_back(section_of(f.key));
  return out;
}

}  // namespace

void ConfigTable::index() {
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    const bool fresh = by_key_.emplace(normal(fields_[i].key), i).second;
    require(fresh, "config", "key {} is declared twice", fields_[i].key);
  }
}

std::vector<std::string> ConfigTable::words() const {
  std::vector<std::string> out = sections_of(fields_);
  for (const auto& f : fields_) out.push_back(f.key);
  return out;
}

const ConfigField* ConfigTable::find(std::string_view key) const {
  const auto it = by_key_.find(normal(key));
  return it == by_key_.end() ? nullptr : &fields_[it->second];
}

bool ConfigTable::is_section(std::string_view key) const {
  const std::string prefix = normal(key) + ".";
  return std::any_of(fields_.begin(), fields_.end(), [&](const auto& f) { return f.key.starts_with(prefix); });
}

void ConfigTable::set(std::string_view key, const ConfigValue& value, const std::string& origin) {
  const auto it = by_key_.find(normal(key));
  const bool said = says_key(origin, key);
  const std::string where = said ? "" : origin + ": ";
  if (it == by_key_.end()) {
    const std::string what = said ? origin : shown(key);
    if (is_section(key))
      fail_usage("config", "{}{} is a section, but has a value here; set one of its keys instead", where, what);
    // Only the last word may be right, while the section is wrong or missing.
    const std::string last = normal(key.substr(key.rfind('.') + 1));
    auto known = words();
    std::erase(known, "");  // the section without a name
    std::string hint = did_you_mean(normal(key), known);
    for (const auto& f : fields_)
      if (hint.empty() && f.key.ends_with("." + last)) hint = fmt::format("; did you mean '{}'?", f.key);
    fail_usage("config", "{}unknown key {}{}", where, what, hint);
  }
  ConfigField& field = fields_[it->second];
  try {
    field.set(value);
  } catch (const ConfigMismatch& m) {
    fail_usage("config", "{}{}: expected {}, found {}", where, said ? origin : field.key, field.type, m.found);
  }
  field.origin = origin;
}

void ConfigTable::apply_environment(const std::function<const char*(const char*)>& lookup) {
  for (const auto& f : fields_) {
    const std::string name = environment_name(f.key);
    if (const char* text = lookup(name.c_str())) set(f.key, ConfigText{text}, name);
  }
}

std::vector<std::string> ConfigTable::unread_variables(const std::vector<std::string>& variables,
                                                       const std::vector<std::string>& others) const {
  std::vector<std::string> names, unread;  // without the prefix, which is always right here
  for (const auto& f : fields_) names.push_back(environment_name(f.key).substr(kPrefix.size()));
  for (const auto& name : others) names.push_back(name.substr(kPrefix.size()));
  for (const auto& variable : variables) {
    if (!variable.starts_with(kPrefix)) continue;
    const std::string word = variable.substr(kPrefix.size());
    if (std::find(names.begin(), names.end(), word) != names.end()) continue;
    auto meant = nearest(word, names);
    for (const auto& f : fields_)  // the section may be missing
      if (const auto name = environment_name(f.key); !meant && name.ends_with("_" + word))
        meant = name.substr(kPrefix.size());
    unread.push_back(fmt::format("{} is set, but no such key exists{}", variable,
                                 meant ? fmt::format("; did you mean {}{}?", kPrefix, *meant) : ""));
  }
  return unread;
}

void ConfigTable::apply_override(std::string_view argument) {
  std::string_view text = argument;
  if (text.starts_with("--")) text.remove_prefix(2);
  else if (text.starts_with("-"))
    fail_usage("config", "unknown option {}; keys of the config are set by --SECTION.KEY=VALUE", argument);
  const auto equals = text.find('=');
  const std::string key(text.substr(0, equals));
  if (equals != std::string_view::npos) return set(key, ConfigText{std::string(text.substr(equals + 1))}, "--" + key);
  const ConfigField* field = find(key);
  if (field && field->type != "true or false")
    fail_usage("config", "expected --{}=VALUE with {}, found no value", key, field->type);
  set(key, ConfigText{"true"}, "--" + key);
}

void ConfigTable::load(const std::vector<fs::path>& files, const std::vector<std::string>& overrides) {
  for (const auto& f : files) apply_file(f);
  apply_environment([](const char* name) { return static_cast<const char*>(std::getenv(name)); });
  for (const auto& o : overrides) apply_override(o);
}

std::string ConfigTable::print(bool origins) const {
  std::string out;
  for (const auto& section : sections_of(fields_)) {
    if (!section.empty()) out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
    for (const auto& f : fields_) {
      if (section_of(f.key) != section) continue;
      const std::string value = f.toml(), name = f.key.substr(section.empty() ? 0 : section.size() + 1);
      const std::string line =
          value.empty() ? fmt::format("# {} is not set", name) : fmt::format("{} = {}", name, value);
      out += origins ? fmt::format("{:<40} # {}\n", line, f.origin) : line + "\n";
    }
  }
  return out;
}

std::string ConfigTable::help() const {
  std::size_t width = 0;
  for (const auto& f : fields_) width = std::max(width, f.key.size());
  std::string out;
  for (const auto& section : sections_of(fields_)) {
    if (!section.empty()) out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
    for (const auto& f : fields_)
      if (section_of(f.key) == section)
        out += fmt::format("  --{:<{}}  {} ({}{})\n", f.key, width, f.help, f.type,
                           f.default_toml.empty() ? "" : "; default " + f.default_toml);
  }
  return out;
}

Json ConfigTable::schema() const {
  Json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
               {"type", "object"},
               {"additionalProperties", false},
               {"properties", Json::object()}};
  for (const auto& f : fields_) {
    Json* at = &root;
    std::string_view rest = f.key;
    for (auto dot = rest.find('.'); dot != std::string_view::npos; dot = rest.find('.')) {
      Json& inner = (*at)["properties"][std::string(rest.substr(0, dot))];
      if (inner.is_null())
        inner = {{"type", "object"}, {"additionalProperties", false}, {"properties", Json::object()}};
      at = &inner;
      rest.remove_prefix(dot + 1);
    }
    Json leaf = schema_of(f.accepts);
    leaf["description"] = f.help;
    (*at)["properties"][std::string(rest)] = std::move(leaf);
  }
  return root;
}

}  // namespace hpcdl::io

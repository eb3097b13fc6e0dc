#pragma once
// The fields of a config struct as a table, and everything that is derived from it. See config_visitor.h.

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hpcdl/io/config_value.h"

namespace hpcdl::io {

struct ConfigField {
  std::string key;           // "train.steps"
  std::string help, type;    // type in words
  std::string default_toml;  // "" for an absent optional
  std::string origin;        // "default", "run.toml:3", "HPCDL_TRAIN_STEPS", "--train.steps"
  ConfigType accepts;
  bool per_rank = false;  // see FieldOptions
  std::function<void(const ConfigValue&)> set;
  std::function<std::string()> toml;  // the value now
};

/// Refers to the struct it was made from, which must outlive it and stay in place. All errors are UsageError and say
/// what was expected, what was found and where.
class ConfigTable {
 public:
  template <class C> explicit ConfigTable(C& config) {
    Collector collector{*this, ""};
    config.visit(collector);
    index();
  }

  /// Applies all sources in order of precedence: default < files (later wins) < environment < overrides.
  void load(const std::vector<fs::path>& files, const std::vector<std::string>& overrides);

  void apply_file(const fs::path& path);
  /// `name` is the name of the file in messages and origins.
  void apply_toml(std::string_view text, const std::string& name);
  /// HPCDL_SECTION_KEY for every field; `lookup` returns null for variables that are not set.
  void apply_environment(const std::function<const char*(const char*)>& lookup);
  /// A warning for each variable HPCDL_... that is neither for a field nor one of `others`: that it is not
  /// read, and what was probably meant.
  std::vector<std::string> unread_variables(const std::vector<std::string>& variables,
                                            const std::vector<std::string>& others) const;
  /// "--train.steps=20", also without "--"; a bare "--train.flag" means true. "-" and "_" are the same in keys.
  void apply_override(std::string_view argument);
  void set(std::string_view key, const ConfigValue& value, const std::string& origin);

  const std::vector<ConfigField>& fields() const { return fields_; }
  /// Null when there is no such key.
  const ConfigField* find(std::string_view key) const;
  bool is_section(std::string_view key) const;

  std::string to_toml() const { return print(false); }
  /// The same with the origin of every value after it.
  std::string print_origins() const { return print(true); }
  std::string help() const;
  Json schema() const;

 private:
  struct Collector {
    ConfigTable& table;
    std::string prefix;
    template <class T> void operator()(const char* name, T& value, const char* help, FieldOptions options = {});
    template <class S> void section(const char* name, S& inner) {
      Collector deeper{table, prefix + name + "."};
      inner.visit(deeper);
    }
  };

  void index();
  std::string print(bool origins) const;
  std::vector<std::string> words() const;  // keys and sections

  std::vector<ConfigField> fields_;
  std::unordered_map<std::string, std::size_t> by_key_;
};

template <class T>
void ConfigTable::Collector::operator()(const char* name, T& value, const char* help, FieldOptions options) {
  ConfigField field;
  field.key = prefix + name;
  field.help = help;
  field.accepts = config_type<T>(options);
  field.type = describe_type(field.accepts);
  field.default_toml = config_toml(value);
  field.origin = "default";
  field.per_rank = options.per_rank;
  field.set = [&value, options](const ConfigValue& v) { value = convert_config<T>(v, options); };
  field.toml = [&value] { return config_toml(value); };
  table.fields_.push_back(std::move(field));
}

}  // namespace hpcdl::io

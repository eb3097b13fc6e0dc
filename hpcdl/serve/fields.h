#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "hpcdl/io/chat_template.h"

namespace hpcdl::serve {

using Json = io::OrderedJson;  // templates print the keys of objects in their order

/// The fields of an object of a request. Null counts as absent. All errors are Refusals with status 400.
class Fields {
 public:
  /// `where` names the object in messages; `value` must outlive this.
  Fields(const Json& value, std::string where);

  const Json* find(const char* name);
  bool has(const char* name) { return find(name) != nullptr; }
  bool flag(const char* name, bool otherwise);
  std::optional<std::int64_t> integer(const char* name, std::int64_t least, std::int64_t most);
  std::optional<double> number(const char* name, double least, double most);
  std::optional<std::string> text(const char* name);
  /// Refuses the fields for which nothing has asked.
  void end() const;
  /// Refuses a field with what was expected and found.
  [[noreturn]] void wrong(const std::string& name, const std::string& expected, const Json& found) const;

 private:
  const Json& value_;
  std::string where_;
  std::vector<std::string> known_;
};

}  // namespace hpcdl::serve

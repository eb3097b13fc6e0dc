#pragma once
// The subset of Jinja that chat templates use. Statements: if, for (filter, else, break, continue), set (and as a
// block), macro, call, filter, with, raw, generation. Expressions: all of Jinja but ** in calls. Filters, tests and
// methods: as listed in filters.cpp, filters_list.cpp, tests.cpp and methods.cpp. Everything else is refused by name.

#include <ctime>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hpcdl/io/jinja/nodes.h"

namespace hpcdl::io::jinja {

/// A parsed template. Immutable.
class Program {
 public:
  /// Throws Error "NAME, line N: ...".
  Program(std::string_view source, std::string_view name);
  /// `more` holds variables for the names that `variables`, an object, lacks.
  std::string render(const nlohmann::ordered_json& variables,
                     const std::vector<std::pair<std::string, std::string>>& more, std::time_t now) const;

 private:
  std::string name_;
  Body body_;
};

}  // namespace hpcdl::io::jinja

#pragma once

#include <string>
#include <string_view>

#include "hpcdl/core/error.h"
#include "hpcdl/io/config_value.h"

namespace hpcdl::cli {

/// The value of an option that is written like that of a key of a run: "24G". Throws UsageError that names `verb`.
template <class T>
T parsed(std::string_view verb, const char* option, const std::string& text, io::FieldOptions accepts) {
  try {
    return io::convert_config<T>(io::ConfigText{text}, accepts);
  } catch (const io::ConfigMismatch& m) {
    fail_usage(verb, "{}: expected {}, found {}", option, io::describe_type(io::config_type<T>(accepts)), m.found);
  }
}

}  // namespace hpcdl::cli

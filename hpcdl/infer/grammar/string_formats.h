#pragma once

#include <string>
#include <string_view>

namespace hpcdl::infer::grammar {

/// The regular expression of a "format" of JSON schema; null for one that is not supported.
const std::string* pattern_of_format(std::string_view format);
/// The supported ones, for messages.
std::string format_names();

}  // namespace hpcdl::infer::grammar

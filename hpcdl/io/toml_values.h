#pragma once

#include <map>
#include <string>
#include <string_view>

namespace hpcdl::io {

/// The values of a TOML file of any keys, each as TOML writes it: {"train.steps", "20"}, {"model.family", "\"gpt2\""}.
/// Throws UsageError, which calls the file `name`, if the text is not valid, or for a date.
std::map<std::string, std::string> toml_values(std::string_view text, const std::string& name);

}  // namespace hpcdl::io

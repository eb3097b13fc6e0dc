#pragma once

#include <string_view>

namespace hpcdl::demos {

/// The text of NAME.toml, which is part of the program.
std::string_view toml(std::string_view name);

}  // namespace hpcdl::demos

#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hpcdl::cli {

/// Columns of the terminal of this descriptor; `otherwise` if it is no terminal.
std::size_t columns_of(int fd, std::size_t otherwise);

/// No line is longer than `width`, except for a single long word. Continued lines are indented to the description:
/// in "  --option   words", under "words".
std::string wrapped(std::string_view text, std::size_t width);

}  // namespace hpcdl::cli

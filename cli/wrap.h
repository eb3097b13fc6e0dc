#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hpcdl::cli {

/// Columns of the terminal of this descriptor; `otherwise` if it is no terminal.
std::size_t columns_of(int fd, std::size_t otherwise);

/// No line longer than `width` unless by a single word. What goes on stands under the description that it belongs to:
/// in "  --option   words", under "words".
std::string wrapped(std::string_view text, std::size_t width);

}  // namespace hpcdl::cli

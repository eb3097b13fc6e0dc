#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hpcdl::io {

/// Insertions, deletions, substitutions and swaps of neighbours between two words.
int edit_distance(std::string_view a, std::string_view b);

/// The candidate that was probably meant by a misspelt word; nothing if none is close.
std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates);

/// "; did you mean 'x'?" or "".
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace hpcdl::io

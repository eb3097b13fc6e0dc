#pragma once
// What methods and filters do with text: parts of str of Python.

#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/io/jinja/run.h"

namespace hpcdl::io::jinja {

/// The white space of str.strip() and str.split(): that of Unicode, and U+001C to U+001F.
bool is_python_space(char32_t point);
std::string_view strip_spaces(std::string_view text, bool left = true, bool right = true);
/// Strips white space if `characters` is none, and otherwise any of the characters.
std::string_view strip(std::string_view text, const Value& characters, bool left, bool right, Run& run);

/// Where `what` stands in the text at or after `from`, in linear time; npos if nowhere.
std::size_t find_in(std::string_view text, std::string_view what, std::size_t from = 0);
/// The last place, in time that grows with the product of the sizes, which is charged.
std::size_t find_last_in(Run& run, std::string_view text, std::string_view what);

std::string escape_html(std::string_view text);
std::string capitalized(std::string_view text);
/// Every word begins in upper case. Words end at white space and at one of `ends`, or, if that is empty, at everything
/// that is not a letter.
std::string titled(std::string_view text, std::string_view ends);
/// At most `count` times if that is >= 0.
std::string replaced(Run& run, std::string_view text, std::string_view from, std::string_view to, std::int64_t count);
std::vector<std::string_view> lines_of(std::string_view text, bool keep_ends);
/// str.split() and str.rsplit(): at white space if `separator` is empty, at most `most` times if that is >= 0.
std::vector<std::string_view> split(Run& run, std::string_view text, std::string_view separator, std::int64_t most,
                                    bool right);

}  // namespace hpcdl::io::jinja

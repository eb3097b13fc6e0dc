#pragma once
// Writes pickles of protocol 2: each function returns the bytes that put one value onto the stack.

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hpcdl::io::dcp::pickled {

std::string integer(std::int64_t value);
std::string text(std::string_view value);
std::string boolean(bool value);
/// A class or function: of module "torch" and name "Size".
std::string global(std::string_view module, std::string_view name);
std::string tuple(std::initializer_list<std::string> items);
std::string tuple(std::span<const std::int64_t> items);
std::string list(const std::vector<std::string>& items);
std::string dict(const std::vector<std::pair<std::string, std::string>>& items);
/// function(*arguments), a tuple.
std::string call(std::string_view function, std::string_view arguments);
/// An object with these attributes, made without its constructor.
std::string object(std::string_view type, const std::vector<std::pair<std::string, std::string>>& attributes);
/// The object that the reader knows by this value.
std::string persistent(std::string_view id);
std::string document(std::string_view value);

}  // namespace hpcdl::io::dcp::pickled

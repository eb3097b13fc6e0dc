#include "hpcdl/comm/bootstrap/node_list.h"

#include <charconv>
#include <cstdint>

#include "hpcdl/core/error.h"

namespace hpcdl::comm {

namespace {

constexpr std::size_t kMostNodes = 65536;
constexpr std::size_t kLongestNumber = 9;  // digits

[[noreturn]] void bad_list(std::string_view list, std::string_view why) {
  constexpr std::size_t kShown = 200;
  fail_usage("dist", "\"{}{}\" is not a list of nodes: {}; expected something like gpu[01-03,7],login2",
             list.substr(0, kShown), list.size() > kShown ? "..." : "", why);
}

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
         c == '.' || c == ':';
}

std::uint32_t number(std::string_view text, std::string_view list) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || text.size() > kLongestNumber || error != std::errc() || end != text.data() + text.size())
    bad_list(list, fmt::format("\"{}\" is not a number of at most {} digits", text, kLongestNumber));
  return value;
}

/// Splits at commas, outside of brackets where those are allowed.
std::vector<std::string_view> parts(std::string_view text, std::string_view list) {
  std::vector<std::string_view> found;
  std::size_t begin = 0;
  bool inside = false;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '[') {
      if (inside) bad_list(list, "it has a bracket within brackets");
      inside = true;
    } else if (i < text.size() && text[i] == ']') {
      if (!inside) bad_list(list, "it has a closing bracket without an opening one");
      inside = false;
    } else if (i == text.size() || (text[i] == ',' && !inside)) {
      if (i == begin) bad_list(list, "it has an empty name");
      found.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  if (inside) bad_list(list, "it has a bracket that is not closed");
  return found;
}

/// "01-03,7" -> 01 02 03 7: numbers are as wide as the first of their range.
std::vector<std::string> expand_ranges(std::string_view ranges, std::string_view list) {
  std::vector<std::string> numbers;
  for (const auto range : parts(ranges, list)) {
    const auto dash = range.find('-');
    const auto first = range.substr(0, dash), last = dash == std::string_view::npos ? first : range.substr(dash + 1);
    const std::uint32_t from = number(first, list), to = number(last, list);
    if (to < from) bad_list(list, fmt::format("the range {} is descending", range));
    if (numbers.size() + (to - from) >= kMostNodes)
      bad_list(list, fmt::format("it names more than {} nodes", kMostNodes));
    for (std::uint32_t n = from; n <= to; ++n) numbers.push_back(fmt::format("{:0{}}", n, first.size()));
  }
  return numbers;
}

std::vector<std::string> expand_name(std::string_view name, std::string_view list) {
  std::vector<std::string> names{""};
  while (!name.empty()) {
    const auto open = name.find('[');
    const auto plain = name.substr(0, open);
    for (const char c : plain)
      if (!is_name_character(c)) bad_list(list, "it has a character that host names cannot have");
    for (auto& n : names) n += plain;
    if (open == std::string_view::npos) break;
    const auto close = name.find(']', open);
    const auto numbers = expand_ranges(name.substr(open + 1, close - open - 1), list);
    if (names.size() * numbers.size() > kMostNodes)
      bad_list(list, fmt::format("it names more than {} nodes", kMostNodes));
    std::vector<std::string> longer;
    for (const auto& n : names)
      for (const auto& digits : numbers) longer.push_back(n + digits);
    names = std::move(longer);
    name.remove_prefix(close + 1);
  }
  return names;
}

}  // namespace

std::vector<std::string> expand_nodes(std::string_view list) {
  std::vector<std::string> nodes;
  for (const auto name : parts(list, list)) {
    const auto more = expand_name(name, list);
    if (nodes.size() + more.size() > kMostNodes) bad_list(list, fmt::format("it names more than {} nodes", kMostNodes));
    nodes.insert(nodes.end(), more.begin(), more.end());
  }
  return nodes;
}

std::vector<int> expand_counts(std::string_view list) {
  std::vector<int> counts;
  for (const auto part : parts(list, list)) {
    const auto open = part.find("(x");
    const auto count = number(part.substr(0, open), list);
    std::uint32_t times = 1;
    if (open != std::string_view::npos) {
      if (!part.ends_with(')')) bad_list(list, "it has a bracket that is not closed");
      times = number(part.substr(open + 2, part.size() - open - 3), list);
    }
    if (counts.size() + times > kMostNodes) bad_list(list, fmt::format("it names more than {} nodes", kMostNodes));
    counts.insert(counts.end(), times, static_cast<int>(count));
  }
  return counts;
}

}  // namespace hpcdl::comm

#include "cli/wrap.h"

#include <sys/ioctl.h>

#include <algorithm>

namespace hpcdl::cli {
namespace {

constexpr std::size_t kNarrowest = 20;  // columns of terminals, and of a description next to its option
constexpr std::size_t npos = std::string_view::npos;

constexpr std::size_t kDescriptions = 30;  // the column in which descriptions of options begin

/// Where the description of an option begins, after two blanks or more, or after one if its name fills the columns
/// before it; of other lines the first word.
std::size_t description_of(std::string_view line) {
  const auto first = std::min(line.find_first_not_of(' '), line.size());
  const auto gap = first == 0 ? npos : line.find("  ", first);
  if (first == 2 && gap > kDescriptions && line.size() > kDescriptions && line[kDescriptions - 1] == ' ')
    return kDescriptions;
  return gap == npos ? first : std::min(line.find_first_not_of(' ', gap), line.size());
}

std::string_view without_blanks_behind(std::string_view text) { return text.substr(0, text.find_last_not_of(' ') + 1); }

void append_wrapped(std::string_view line, std::size_t width, std::string& out) {
  const auto begin = description_of(line);
  auto hang = begin;
  if (hang + kNarrowest <= width) {
    out.append(line.substr(0, begin));
  } else {  // no room next to the name: below it
    const auto name = without_blanks_behind(line.substr(0, begin));
    hang = std::min<std::size_t>(4, width - kNarrowest);
    out.append(name).append(name.empty() ? "" : "\n").append(hang, ' ');
  }
  line.remove_prefix(begin);
  const auto room = width - hang;
  while (line.size() > room) {
    auto cut = line.rfind(' ', room);
    if (cut == npos) cut = line.find(' ');
    if (cut == npos) break;
    out.append(without_blanks_behind(line.substr(0, cut))).append("\n").append(hang, ' ');
    line.remove_prefix(std::min(line.find_first_not_of(' ', cut), line.size()));
  }
  out.append(line);
}

}  // namespace

std::size_t columns_of(int fd, std::size_t otherwise) {
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col >= kNarrowest ? size.ws_col : otherwise;
}

std::string wrapped(std::string_view text, std::size_t width) {
  width = std::max(width, kNarrowest);
  std::string out;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    const auto line = text.substr(0, end);
    if (line.size() > width) append_wrapped(line, width, out);
    else out.append(line);
    if (end < text.size()) out += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

}  // namespace hpcdl::cli

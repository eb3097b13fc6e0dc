#include <fmt/format.h>

#include <algorithm>

#include "tools/page/page.h"
#include "tools/page/svg.h"

namespace hpcdl::lab {

namespace {

constexpr std::size_t kNames = 34;

/// Number of characters that are seen: neither continuation bytes of UTF-8 nor the codes that colour a terminal.
std::size_t width(const std::string& s) {
  std::size_t n = 0;
  for (std::size_t i = 0; i < s.size(); ++i) {
    if (s[i] == '\x1b') i = std::min(s.find('m', i), s.size());
    else n += (static_cast<unsigned char>(s[i]) & 0xc0) != 0x80;
  }
  return n;
}

std::string padded(const std::string& s, std::size_t to, bool right) {
  const std::string space(to - std::min(to, width(s)), ' ');
  return right ? space + s : s + space;
}

std::string lines(const std::vector<Fact>& facts) {
  std::string out;
  for (const auto& f : facts) out += fmt::format("  {} {}\n", padded(f.name, kNames, false), f.value);
  return out;
}

std::string lines(const Table& t) { return table_text(t); }

std::string lines(const LineChart&) { return ""; }
std::string lines(const BarChart&) { return ""; }
std::string lines(const Picture&) { return ""; }

std::string lines(const std::vector<Pair>& pairs) {
  std::string out;
  for (const auto& p : pairs) {
    const auto names = std::max(width(p.first_name), width(p.second_name));
    out += fmt::format("{}{} | {}{}\n{} | {}{}\n", out.empty() ? "" : "\n", padded(p.first_name, names, false), p.lead,
                       p.first, padded(p.second_name, names, false), p.lead, p.second);
  }
  return out;
}

}  // namespace

bool is_number(const Table& t, std::size_t column) {
  return column < t.align.size() ? t.align[column] == 'r' : t.align.empty() && column > 0;
}

std::string table_text(const Table& t) {
  std::vector<std::size_t> widths(t.columns.size());
  for (std::size_t i = 0; i < widths.size(); ++i) {
    widths[i] = width(t.columns[i]);
    for (const auto& r : t.rows)
      if (i < r.size()) widths[i] = std::max(widths[i], width(r[i]));
  }
  const auto line = [&](const std::vector<std::string>& words) {
    std::string out = " ";
    for (std::size_t i = 0; i < std::min(words.size(), widths.size()); ++i)
      out += (i == 0 ? " " : "  ") + padded(words[i], widths[i], is_number(t, i));
    return out.substr(0, out.find_last_not_of(' ') + 1) + "\n";
  };
  std::string out = line(t.columns);
  for (const auto& r : t.rows) out += line(r);
  return out;
}

std::string page_text(const Page& page) {
  std::string out = page.caveat.empty() ? "" : page.caveat + "\n";
  for (const auto& c : page.cards) {
    const auto body = std::visit([](const auto& x) { return lines(x); }, c.content);
    if (body.empty()) continue;
    out += fmt::format("\n{}\n{}", c.title, body);
    if (!c.note.empty()) out += fmt::format("  {}\n", c.note);
  }
  return out;
}

}  // namespace hpcdl::lab

#include "tools/page/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

namespace hpcdl::lab {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else if (c == '&') out += "&amp;";
    else if (c == '"') out += "&quot;";
    else out += c;
  }
  return out;
}

double tick_step(double span, double count) {
  const double raw = span / count, power = std::pow(10, std::floor(std::log10(raw)));
  for (const double m : {1.0, 2.0, 5.0})
    if (m * power >= raw * (1 - 1e-9)) return m * power;
  return 10 * power;
}

std::string size_text(double bytes) {
  for (const auto& [unit, name] : {std::pair{1073741824.0, "GiB"}, {1048576.0, "MiB"}, {1024.0, "KiB"}})
    if (bytes >= unit) return fmt::format("{:.4g} {}", bytes / unit, name);
  return fmt::format("{:.0f} B", bytes);
}

namespace {

struct Colour {
  std::string_view name, light, dark;
};
constexpr Colour kColours[] = {
    {"ink", "#1b2330", "#e6ebf2"},   {"soft", "#5d6b80", "#94a3b8"},  {"line", "#dde3ec", "#2b3648"},
    {"page", "#f5f7fa", "#0f1520"},  {"card", "#fff", "#172030"},     {"a", "#1f6feb", "#5b9dff"},
    {"b", "#d9822b", "#f0a04b"},     {"good", "#1a7f4b", "#4cc38a"},  {"c", "#8a63d2", "#a98be8"},
    {"d", "#c0392b", "#e5675a"},     {"e", "#0f9aa8", "#45c4d0"},     {"f", "#b59000", "#d9b840"},
    {"g", "#7a5a3a", "#b79a7a"},     {"quiet", "#b9c4d3", "#3d4b60"}, {"band0", "#eef4fb", "#1d2940"},
    {"band1", "#f6f9fd", "#192336"},
};

/// The rules of one colour scheme for pictures. They name colours, not variables, which viewers other than browsers do
/// not know.
std::string rules(std::string_view Colour::* scheme) {
  const auto colour = [&](std::string_view name) {
    return std::find_if(std::begin(kColours), std::end(kColours), [&](const Colour& c) {
             return c.name == name;
           })->*scheme;
  };
  std::string out = fmt::format(
      "svg text{{fill:{}}}svg .tick{{fill:{}}}svg .value{{stroke:{}}}svg .grid{{stroke:{}}}svg .axis{{stroke:{}}}",
      colour("ink"), colour("soft"), colour("card"), colour("line"), colour("soft"));
  for (const auto& c : kColours)
    out += fmt::format("svg .fill-{0}{{fill:{1}}}svg .stroke-{0}{{stroke:{1}}}svg .stop-{0}{{stop-color:{1}}}", c.name,
                       c.*scheme);
  return out;
}

}  // namespace

std::string palette(std::string_view selector) {
  std::string light, dark;
  for (const auto& c : kColours) {
    light += fmt::format("--{}:{};", c.name, c.light);
    dark += fmt::format("--{}:{};", c.name, c.dark);
  }
  return fmt::format("{0}{{{1}}}@media(prefers-color-scheme:dark){{{0}{{{2}}}}}", selector, light, dark);
}

std::string_view series_colour(std::size_t i) {
  constexpr std::array<std::string_view, 9> kSeries{"a", "b", "good", "c", "d", "e", "f", "g", "soft"};
  return kSeries[i % kSeries.size()];
}

std::string svg_begin(double width, double height, std::string_view label) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n"
      "<style>svg text{{font:13px system-ui,sans-serif}}svg .tick{{font-size:12px}}"
      "svg .title{{font-size:20px;font-weight:600}}svg .level{{font-size:15px;font-weight:600}}"
      "svg .value{{font-weight:600;paint-order:stroke;stroke-width:4px}}{}@media(prefers-color-scheme:dark){{{}}}"
      "</style>\n<rect width=\"100%\" height=\"100%\" class=\"fill-card\"/>\n",
      width, height, escaped(label), rules(&Colour::light), rules(&Colour::dark));
}

std::string svg_text(double x, double y, std::string_view anchor, std::string_view words, std::string_view classes,
                     std::string_view more) {
  return fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", classes, x, y,
                     anchor, more, escaped(words));
}

std::string svg_line(double x1, double y1, double x2, double y2, std::string_view attributes) {
  return fmt::format("<line {} x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", attributes, x1, y1, x2,
                     y2);
}

std::string svg_legend(double x, double y, const std::vector<std::string>& names) {
  constexpr double kLetter = 6.8;  // the mean width of a letter at this size
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"11\" height=\"11\" rx=\"3\" class=\"fill-{}\"/>\n", x,
                       y - 10, series_colour(i));
    out += svg_text(x + 16, y, "start", names[i]);
    x += 16 + kLetter * static_cast<double>(names[i].size()) + 22;
  }
  return out;
}

}  // namespace hpcdl::lab

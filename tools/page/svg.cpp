#include "tools/page/svg.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

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

std::string palette(std::string_view selector) {
  constexpr const char* kLight =
      "--ink:#1b2330;--soft:#5d6b80;--line:#dde3ec;--page:#f5f7fa;--card:#fff;--a:#1f6feb;--b:#d9822b;--good:#1a7f4b;"
      "--c:#8a63d2;--d:#c0392b;--e:#0f9aa8;--f:#b59000;--g:#7a5a3a;--quiet:#b9c4d3;--band0:#eef4fb;--band1:#f6f9fd";
  constexpr const char* kDark =
      "--ink:#e6ebf2;--soft:#94a3b8;--line:#2b3648;--page:#0f1520;--card:#172030;--a:#5b9dff;--b:#f0a04b;--good:#"
      "4cc38a;"
      "--c:#a98be8;--d:#e5675a;--e:#45c4d0;--f:#d9b840;--g:#b79a7a;--quiet:#3d4b60;--band0:#1d2940;--band1:#192336";
  return fmt::format("{0}{{{1}}}@media(prefers-color-scheme:dark){{{0}{{{2}}}}}", selector, kLight, kDark);
}

std::string series_colour(std::size_t i) {
  constexpr std::array kColours{"var(--a)", "var(--b)", "var(--good)", "var(--c)",   "var(--d)",
                                "var(--e)", "var(--f)", "var(--g)",    "var(--soft)"};
  return kColours[i % kColours.size()];
}

std::string svg_begin(double width, double height, std::string_view label) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n"
      "<style>{}svg text{{font:13px system-ui,sans-serif;fill:var(--ink)}}svg .tick{{fill:var(--soft);font-size:12px}}"
      "svg .title{{font-size:20px;font-weight:600}}svg .level{{font-size:15px;font-weight:600}}"
      "svg .value{{font-weight:600;paint-order:stroke;stroke:var(--card);stroke-width:4px}}"
      "svg .grid{{stroke:var(--line)}}svg .axis{{stroke:var(--soft)}}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"var(--card)\"/>\n",
      width, height, escaped(label), palette("svg"));
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
  constexpr double kGlyph = 6.8;  // the mean width of a letter at this size
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"11\" height=\"11\" rx=\"3\" fill=\"{}\"/>\n", x, y - 10,
                       series_colour(i));
    out += svg_text(x + 16, y, "start", names[i]);
    x += 16 + kGlyph * static_cast<double>(names[i].size()) + 22;
  }
  return out;
}

}  // namespace hpcdl::lab

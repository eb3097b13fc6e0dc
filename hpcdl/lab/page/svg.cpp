#include "hpcdl/lab/page/svg.h"

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

std::string series_colour(std::size_t i) {
  static constexpr std::array kColours{"var(--a,#1f6feb)", "var(--b,#d9822b)", "var(--good,#1a7f4b)",
                                       "var(--c,#8a63d2)", "var(--d,#c0392b)", "var(--soft,#5d6b80)"};
  return kColours[i % kColours.size()];
}

std::string svg_begin(double width, double height, std::string_view label) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n"
      "<style>.grid{{stroke:var(--line,#dde3ec)}}.tick{{fill:var(--soft,#5d6b80);font:12px "
      "system-ui,sans-serif}}.name{{fill:var(--ink,#1b2330);font:13px system-ui,sans-serif}}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"var(--card,#fff)\"/>\n",
      width, height, escaped(label));
}

std::string svg_text(double x, double y, std::string_view anchor, std::string_view words, std::string_view classes) {
  return fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", classes, x, y,
                     anchor, escaped(words));
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

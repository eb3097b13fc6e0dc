#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "tools/page/page.h"
#include "tools/page/svg.h"

namespace hpcdl::lab {

namespace {

constexpr double kNumbers = 190, kBar = 22, kPitch = 34, kGlyph = 7.2;

double length(const BarChart::Bar& b) { return std::accumulate(b.parts.begin(), b.parts.end(), 0.0); }

}  // namespace

std::string svg(const BarChart& chart) {
  double longest = chart.mark, letters = 0;
  for (const auto& b : chart.bars)
    longest = std::max(longest, length(b)), letters = std::max(letters, static_cast<double>(b.name.size()));
  if (longest <= 0) return "";
  const double head = (chart.title.empty() ? 0 : 30) + (chart.subtitle.empty() ? 0 : 20);
  const double top = head + (chart.parts.empty() ? 12 : 40), left = 24 + kGlyph * letters,
               height = top + kPitch * static_cast<double>(chart.bars.size()) + (chart.footer.empty() ? 8 : 36);
  const double scale = (kChartWidth - left - kNumbers) / longest;
  std::string out = svg_begin(kChartWidth, height, "bars");
  if (!chart.title.empty()) out += svg_text(16, 28, "start", chart.title, "title");
  if (!chart.subtitle.empty()) out += svg_text(16, head - 4, "start", chart.subtitle);
  if (!chart.footer.empty()) out += svg_text(16, height - 14, "start", chart.footer);
  if (!chart.parts.empty()) out += svg_legend(left, head + 20, chart.parts);
  double y = top;
  for (const auto& b : chart.bars) {
    out += svg_text(left - 10, y + 16, "end", b.name, "name");
    double x = left;
    for (std::size_t i = 0; i < b.parts.size(); ++i) {
      out +=
          fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" rx=\"3\" class=\"fill-{}\"/>\n",
                      x, y, std::max(0.0, b.parts[i] * scale), kBar, series_colour(i));
      x += b.parts[i] * scale;
    }
    out += svg_text(x + 8, y + 16, "start", b.label);
    y += kPitch;
  }
  if (chart.mark > 0)
    out += svg_line(left + chart.mark * scale, top - 6, left + chart.mark * scale, y - 4,
                    fmt::format("class=\"stroke-{}\" stroke-dasharray=\"4 3\"", series_colour(4)));
  return out + "</svg>\n";
}

}  // namespace hpcdl::lab

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "hpcdl/lab/page/page.h"
#include "hpcdl/lab/page/svg.h"

namespace hpcdl::lab {

namespace {

constexpr double kHeight = 330, kLeft = 62, kRight = 20, kTop = 36, kBottom = 46;
constexpr std::size_t kDotsUpTo = 60;
constexpr double kLeastSpan =
    1e-10;  // share of the largest value: smaller differences come from rounding and count as equal

using Points = std::vector<std::pair<double, double>>;

struct Frame {
  double left, right, low, high;
  bool log_x;

  double place(double x) const { return log_x ? std::log2(x) : x; }
  double x(double v) const {
    return kLeft + (kChartWidth - kLeft - kRight) * (place(v) - place(left)) / (place(right) - place(left));
  }
  double y(double v) const { return kTop + (kHeight - kTop - kBottom) * (high - v) / (high - low); }
};

Points finite(const Series& s, bool log_x) {
  Points out;
  for (const auto& p : s.points)
    if (std::isfinite(p.first) && std::isfinite(p.second) && (!log_x || p.first > 0)) out.push_back(p);
  return out;
}

/// The range of all points, extended to ticks.
Frame frame_of(const LineChart& c, const std::vector<Points>& all) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  Frame f{kInf, -kInf, kInf, -kInf, c.log_x};
  for (const auto& points : all)
    for (const auto& [x, y] : points)
      f.left = std::min(f.left, x), f.right = std::max(f.right, x), f.low = std::min(f.low, y),
      f.high = std::max(f.high, y);
  if (c.from_zero) f.low = std::min(f.low, 0.0), f.high = std::max(f.high, 0.0);
  if (f.right <= f.left) c.log_x ? (f.left /= 2, f.right *= 2) : (f.left -= 0.5, f.right += 0.5);
  if (f.high - f.low <= kLeastSpan * std::max(std::abs(f.high), std::abs(f.low)))
    f.high += std::max(1e-6, 0.05 * std::abs(f.high)),
        f.low -= c.from_zero ? 0 : std::max(1e-6, 0.05 * std::abs(f.low));
  const double step = tick_step(f.high - f.low, 5);
  f.low = std::floor(f.low / step + 1e-9) * step;
  f.high = std::ceil(f.high / step - 1e-9) * step;
  return f;
}

/// Steps and epochs are whole numbers: no ticks between two of them.
bool whole(const std::vector<Points>& all) {
  return std::all_of(all.begin(), all.end(), [](const Points& points) {
    return std::all_of(points.begin(), points.end(), [](const auto& p) { return p.first == std::round(p.first); });
  });
}

std::string axes(const LineChart& c, const Frame& f, const std::vector<Points>& all) {
  std::string out;
  const double dy = tick_step(f.high - f.low, 5);
  for (double v = f.low; v <= f.high + dy / 1e6; v += dy) {
    out += fmt::format("<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>\n", kLeft,
                       kChartWidth - kRight, f.y(v));
    out += svg_text(kLeft - 8, f.y(v) + 4, "end", fmt::format("{:g}", std::abs(v) < dy / 1e6 ? 0.0 : v));
  }
  std::vector<double> ticks;
  if (c.log_x) {
    for (const auto& points : all)
      for (const auto& p : points) ticks.push_back(p.first);
    std::sort(ticks.begin(), ticks.end());
    ticks.erase(std::unique(ticks.begin(), ticks.end()), ticks.end());
  } else {
    const double dx = std::max(tick_step(f.right - f.left, 8), whole(all) ? 1.0 : 0.0);
    for (double v = std::ceil(f.left / dx - 1e-9) * dx; v <= f.right + dx / 1e6; v += dx)
      ticks.push_back(std::abs(v) < dx / 1e6 ? 0 : v);
  }
  for (const double v : ticks) out += svg_text(f.x(v), kHeight - kBottom + 18, "middle", fmt::format("{:g}", v));
  out += svg_text((kLeft + kChartWidth - kRight) / 2, kHeight - 8, "middle", c.x);
  return out + svg_text(8, 20, "start", c.y);
}

Points smooth(const Points& points) {
  const auto n = std::ssize(points), reach = std::max<std::int64_t>(1, n / 60);
  Points out;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto r = std::min({reach, i, n - 1 - i});
    double sum = 0;
    for (auto k = i - r; k <= i + r; ++k) sum += points[static_cast<std::size_t>(k)].second;
    out.push_back({points[static_cast<std::size_t>(i)].first, sum / static_cast<double>(2 * r + 1)});
  }
  return out;
}

std::string path(const Points& points, const Frame& f, const std::string& colour, double width, double opacity) {
  std::string d;
  for (const auto& [x, y] : points) d += fmt::format("{}{:.1f},{:.1f}", d.empty() ? "M" : " L", f.x(x), f.y(y));
  return fmt::format(
      "<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-opacity=\"{}\" "
      "stroke-linejoin=\"round\"/>\n",
      d, colour, width, opacity);
}

std::string draw(const Series& s, const Points& points, const Frame& f, const std::string& colour) {
  std::string out;
  if (s.form == Series::Form::smooth) out += path(points, f, colour, 1, 0.25) + path(smooth(points), f, colour, 2.4, 1);
  if (s.form == Series::Form::line) out += path(points, f, colour, 2.2, 1);
  if (s.form == Series::Form::dots || (s.form == Series::Form::line && points.size() <= kDotsUpTo))
    for (const auto& [x, y] : points)
      out += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"><title>{}: {:g}, {:.4g}</title></circle>\n", f.x(x),
          f.y(y), colour, escaped(s.name), x, y);
  return out;
}

}  // namespace

std::string svg(const LineChart& chart) {
  std::vector<Points> all;
  std::vector<std::string> names;
  bool any = false;
  for (const auto& s : chart.series) {
    all.push_back(finite(s, chart.log_x));
    names.push_back(s.name);
    any = any || !all.back().empty();
  }
  if (!any) return "";
  const auto frame = frame_of(chart, all);
  std::string out = svg_begin(kChartWidth, kHeight, chart.y + " over " + chart.x) + axes(chart, frame, all);
  for (std::size_t i = 0; i < all.size(); ++i) out += draw(chart.series[i], all[i], frame, series_colour(i));
  if (names.size() > 1) out += svg_legend(kLeft + 170, 20, names);
  return out + "</svg>\n";
}

}  // namespace hpcdl::lab

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tools/page/page.h"
#include "tools/page/svg.h"

namespace hpcdl::lab {

namespace {

constexpr std::size_t kDotsUpTo = 60;
constexpr double kLeastSpan =
    1e-10;  // share of the largest value: smaller differences come from rounding and count as equal
constexpr double kBandNames = 42;  // at the top of a chart with bands

using Points = std::vector<std::pair<double, double>>;

struct Frame {
  double width = kChartWidth, height = 330, left = 62, right = 20, top = 36, bottom = 46;  // the last four: margins
  double first = 0, last = 0, low = 0, high = 0;                                           // ranges of x and y
  bool log_x = false, log_y = false;

  static double place(double v, bool log) { return log ? std::log2(v) : v; }
  static double share(double v, double from, double to, bool log) {
    return (place(v, log) - place(from, log)) / (place(to, log) - place(from, log));
  }
  double x(double v) const { return left + (width - left - right) * share(v, first, last, log_x); }
  double y(double v) const { return top + (height - top - bottom) * share(v, high, low, log_y); }
  double edge() const { return width - right; }
  double ground() const { return height - bottom; }
};

Points finite(const Series& s, bool log_x, bool log_y) {
  Points out;
  for (const auto& [x, y] : s.points)
    if (std::isfinite(x) && std::isfinite(y) && (!log_x || x > 0) && (!log_y || y > 0)) out.emplace_back(x, y);
  return out;
}

/// The range of y, extended to ticks.
void round_to_ticks(Frame& f, bool from_zero) {
  if (from_zero) f.low = std::min(f.low, 0.0), f.high = std::max(f.high, 0.0);
  if (f.high - f.low <= kLeastSpan * std::max(std::abs(f.high), std::abs(f.low)))
    f.high += std::max(1e-6, 0.05 * std::abs(f.high)), f.low -= from_zero ? 0 : std::max(1e-6, 0.05 * std::abs(f.low));
  const double step = tick_step(f.high - f.low, 5);
  f.low = std::floor(f.low / step + 1e-9) * step;
  f.high = std::ceil(f.high / step - 1e-9) * step;
}

Frame frame_of(const LineChart& c, const std::vector<Points>& all) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  Frame f;
  f.first = f.low = kInf, f.last = f.high = -kInf;
  f.log_x = c.log_x || c.sizes, f.log_y = c.sizes;
  for (const auto& points : all)
    for (const auto& [x, y] : points)
      f.first = std::min(f.first, x), f.last = std::max(f.last, x), f.low = std::min(f.low, y),
      f.high = std::max(f.high, y);
  if (!c.sizes) {
    if (f.last <= f.first) c.log_x ? (f.first /= 2, f.last *= 2) : (f.first -= 0.5, f.last += 0.5);
    round_to_ticks(f, c.from_zero);
    return f;
  }
  f.width = 1040, f.height = 600, f.left = 76, f.right = 190, f.bottom = 64;
  f.top = 64 + 20 * static_cast<double>(c.subtitles.size());
  f.first = std::exp2(std::floor(std::log2(f.first))), f.last = std::max(f.last, 2 * f.first);
  const double room = f.high > f.low * 2 ? 1.4 : 1.6;  // so that it always contains a grid line at 1, 2 or 5
  f.low /= room, f.high *= c.bands.empty() ? room : 2.6;
  return f;
}

/// Steps and epochs are whole numbers: no ticks between two of them.
bool whole(const std::vector<Points>& all) {
  return std::all_of(all.begin(), all.end(), [](const Points& points) {
    return std::all_of(points.begin(), points.end(), [](const auto& p) { return p.first == std::round(p.first); });
  });
}

std::string grid_line(const Frame& f, double at, const std::string& words) {
  return svg_line(f.left, f.y(at), f.edge(), f.y(at), "class=\"grid\"") +
         svg_text(f.left - 8, f.y(at) + 4, "end", words);
}

std::string axes(const LineChart& c, const Frame& f, const std::vector<Points>& all) {
  std::string out;
  const double dy = tick_step(f.high - f.low, 5);
  for (double v = f.low; v <= f.high + dy / 1e6; v += dy)
    out += grid_line(f, v, fmt::format("{:g}", std::abs(v) < dy / 1e6 ? 0.0 : v));
  std::vector<double> ticks;
  if (c.log_x) {
    for (const auto& points : all)
      for (const auto& p : points) ticks.push_back(p.first);
    std::sort(ticks.begin(), ticks.end());
    ticks.erase(std::unique(ticks.begin(), ticks.end()), ticks.end());
  } else {
    const double dx = std::max(tick_step(f.last - f.first, 8), whole(all) ? 1.0 : 0.0);
    for (double v = std::ceil(f.first / dx - 1e-9) * dx; v <= f.last + dx / 1e6; v += dx)
      ticks.push_back(std::abs(v) < dx / 1e6 ? 0 : v);
  }
  for (const double v : ticks) out += svg_text(f.x(v), f.ground() + 18, "middle", fmt::format("{:g}", v));
  out += svg_text((f.left + f.edge()) / 2, f.height - 8, "middle", c.x);
  return out + svg_text(8, 20, "start", c.y);
}

std::string axes_of_sizes(const LineChart& c, const Frame& f) {
  std::string out;
  const bool few = f.high < 1000 * f.low;  // powers of ten in it
  for (int e = -6; e < 7; ++e)
    for (const int m : {1, 2, 5})
      if (const double v = m * std::pow(10, e);
          v >= f.low && v <= f.high && (m == 1 || few) && (c.bands.empty() || f.y(v) > f.top + kBandNames))
        out += grid_line(f, v, fmt::format("{:.{}f}", v, std::max(0, -e)));
  const double step = std::exp2(std::ceil(std::log2(f.last / f.first) / 12));
  for (double bytes = f.first; bytes <= f.last * 1.001; bytes *= step)
    out += svg_line(f.x(bytes), f.ground(), f.x(bytes), f.ground() + 5, "class=\"axis\"") +
           svg_text(f.x(bytes), f.ground() + 20, "middle", size_text(bytes));
  out += svg_line(f.left, f.ground(), f.edge(), f.ground(), "class=\"axis\"");
  out += svg_text((f.left + f.edge()) / 2, f.height - 16, "middle", c.x, "name");
  return out + svg_text(0, 0, "middle", c.y, "name",
                        fmt::format(" transform=\"translate(20 {:.0f}) rotate(-90)\"", (f.top + f.ground()) / 2));
}

std::string bands(const LineChart& c, const Frame& f) {
  std::string out;
  for (std::size_t i = 0; i < 2 && !c.bands.empty(); ++i)
    out += fmt::format(
        "<linearGradient id=\"fade{0}\"><stop offset=\"0\" class=\"stop-band{0}\"/><stop offset=\"1\" "
        "class=\"stop-card\"/></linearGradient>\n",
        i);
  int shade = 1;
  for (const auto& b : c.bands) {
    const double from = f.x(std::clamp(b.from, f.first, f.last)), to = f.x(std::clamp(b.to, f.first, f.last));
    if (!b.fades) shade = 1 - shade;
    if (to > from)
      out +=
          fmt::format("<rect x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\"{}/>\n", from, f.top, to - from,
                      f.ground() - f.top,
                      fmt::format(fmt::runtime(b.fades ? " fill=\"url(#fade{})\"" : " class=\"fill-band{}\""), shade));
    if (to - from >= 30 && !b.name.empty())
      out += svg_text((from + to) / 2, f.top + 20, "middle", b.name, "level") +
             svg_text((from + to) / 2, f.top + 36, "middle", b.note);
  }
  return out;
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

std::string path(const Points& points, const Frame& f, std::string_view colour, double width, double opacity,
                 bool dashed = false) {
  std::string d;
  for (const auto& [x, y] : points) d += fmt::format("{}{:.1f},{:.1f}", d.empty() ? "M" : " L", f.x(x), f.y(y));
  return fmt::format(
      "<path d=\"{}\" fill=\"none\" class=\"stroke-{}\" stroke-width=\"{}\" stroke-opacity=\"{}\" "
      "stroke-linejoin=\"round\"{}"
      "/>\n",
      d, colour, width, opacity, dashed ? " stroke-dasharray=\"6 4\"" : "");
}

std::string_view colour_of(const LineChart& c, std::size_t i) {
  return series_colour(c.series[i].colour < 0 ? i : static_cast<std::size_t>(c.series[i].colour));
}

/// Dots that are not seen show their tips all the same.
std::string draw(const Series& s, const Points& points, const Frame& f, std::string_view colour) {
  std::string out;
  if (s.form == Series::Form::smooth) out += path(points, f, colour, 1, 0.25) + path(smooth(points), f, colour, 2.4, 1);
  if (s.form == Series::Form::line) out += path(points, f, colour, s.dashed ? 1.8 : 2.4, 1, s.dashed);
  if (s.form == Series::Form::smooth || (s.form == Series::Form::line && points.size() > kDotsUpTo)) return out;
  const bool seen = !f.log_y || points.size() == 1;  // a line with one point is not visible
  for (std::size_t i = 0; i < points.size(); ++i) {
    const auto& [x, y] = points[i];
    out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\"{}><title>{}</title></circle>\n", f.x(x), f.y(y),
                       seen ? 4 : 7, seen ? fmt::format(" class=\"fill-{}\"", colour) : " fill=\"transparent\"",
                       escaped(i < s.tips.size() ? s.tips[i] : fmt::format("{}: {:g}, {:.4g}", s.name, x, y)));
  }
  return out;
}

/// Names next to the ends of lines, from the highest down, far enough apart.
std::string names_at_ends(const LineChart& c, const std::vector<Points>& all, const Frame& f) {
  struct Name {
    double end, y;
    std::size_t series;
  };
  std::vector<Name> names;
  double pitch = 17;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool last = std::none_of(c.series.begin() + static_cast<std::ptrdiff_t>(i) + 1, c.series.end(),
                                   [&](const Series& later) { return later.name == c.series[i].name; });
    if (all[i].empty() || !last) continue;
    names.push_back({f.y(all[i].back().second), 0, i});
    if (!c.series[i].note.empty()) pitch = 32;
  }
  std::sort(names.begin(), names.end(), [](const Name& a, const Name& b) { return a.end < b.end; });
  double next = f.top;
  for (auto& n : names) n.y = std::max(n.end, next), next = n.y + pitch;
  const double over = std::max(0.0, next - pitch - f.ground());
  std::string out;
  for (const auto& n : names) {
    const auto colour = colour_of(c, n.series);
    const double y = n.y - over;
    out += svg_line(f.edge() + 2, n.end, f.edge() + 14, y, fmt::format("class=\"stroke-{}\"", colour)) +
           svg_text(f.edge() + 18, y + 4, "start", c.series[n.series].name, fmt::format("name fill-{}", colour));
    if (!c.series[n.series].note.empty())
      out += svg_text(f.edge() + 18, y + 19, "start", c.series[n.series].note, fmt::format("tick fill-{}", colour));
  }
  return out;
}

}  // namespace

std::string svg(const LineChart& chart) {
  std::vector<Points> all;
  std::vector<std::string> names;
  bool any = false;
  for (const auto& s : chart.series) {
    all.push_back(finite(s, chart.log_x || chart.sizes, chart.sizes));
    names.push_back(s.name);
    any = any || !all.back().empty();
  }
  if (!any) return "";
  const auto f = frame_of(chart, all);
  std::string out = svg_begin(f.width, f.height, chart.y + " over " + chart.x);
  if (!chart.title.empty()) out += svg_text(f.left, 38, "start", chart.title, "title");
  for (std::size_t i = 0; i < chart.subtitles.size(); ++i)
    out += svg_text(f.left, 62 + 20 * static_cast<double>(i), "start", chart.subtitles[i]);
  out += bands(chart, f) + (chart.sizes ? axes_of_sizes(chart, f) : axes(chart, f, all));
  for (std::size_t i = 0; i < all.size(); ++i) out += draw(chart.series[i], all[i], f, colour_of(chart, i));
  for (const auto& m : chart.marks)
    out += svg_text(f.x(m.x), f.y(m.y) - 10, "middle", m.words,
                    fmt::format("value fill-{}", series_colour(static_cast<std::size_t>(m.colour))));
  if (chart.sizes) out += names_at_ends(chart, all, f);
  else if (names.size() > 1) out += svg_legend(f.left + 170, 20, names);
  return out + "</svg>\n";
}

}  // namespace hpcdl::lab

// The loss curve as an inline SVG picture.

#include "cli/demo_curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace hpcdl::cli {

namespace {

constexpr double kWidth = 860, kHeight = 320, kLeft = 52, kRight = 16, kTop = 14, kBottom = 40;

struct Scale {
  double last_step, low, high;
  double x(double step) const { return kLeft + (kWidth - kLeft - kRight) * step / last_step; }
  double y(double loss) const { return kTop + (kHeight - kTop - kBottom) * (high - loss) / (high - low); }
};

/// 1, 2 or 5 times a power of ten, so that about `count` steps cover `span`.
double tick(double span, double count) {
  const double raw = span / count, power = std::pow(10, std::floor(std::log10(raw)));
  for (const double m : {1.0, 2.0, 5.0})
    if (m * power >= raw) return m * power;
  return 10 * power;
}

std::string path(const std::vector<CurvePoint>& points, const Scale& s) {
  std::string d;
  for (const auto& p : points) d += fmt::format("{}{:.1f},{:.1f}", d.empty() ? "M" : " L", s.x(p.step), s.y(p.loss));
  return d;
}

/// Each point the mean of its neighbourhood: what the eye should follow.
std::vector<CurvePoint> smooth(const std::vector<CurvePoint>& points) {
  const auto n = std::ssize(points), reach = std::max<std::int64_t>(1, n / 60);
  std::vector<CurvePoint> out;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto r = std::min({reach, i, n - 1 - i});
    double sum = 0;
    for (auto k = i - r; k <= i + r; ++k) sum += points[static_cast<std::size_t>(k)].loss;
    out.push_back({points[static_cast<std::size_t>(i)].step, sum / static_cast<double>(2 * r + 1)});
  }
  return out;
}

std::string grid(const Scale& s) {
  std::string svg;
  const double dy = tick(s.high - s.low, 5), dx = tick(s.last_step, 8);
  for (double v = std::ceil(s.low / dy) * dy; v <= s.high + 1e-9; v += dy)
    svg += fmt::format("<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/><text class=\"tick\" x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:g}</text>",
                       kLeft, kWidth - kRight, s.y(v), kLeft - 8, s.y(v) + 4, v);
  for (double v = 0; v <= s.last_step + 1e-9; v += dx)
    svg += fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:g}</text>", s.x(v), kHeight - kBottom + 18, v);
  svg += fmt::format("<text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">step</text>", (kLeft + kWidth - kRight) / 2, kHeight - 4);
  return svg;
}

}  // namespace

std::string curve_svg(const std::vector<CurvePoint>& curve, const std::vector<CurvePoint>& evaluation) {
  if (curve.empty()) return "";
  Scale s{std::max(curve.back().step, 1.0), curve[0].loss, curve[0].loss};
  for (const auto* list : {&curve, &evaluation})
    for (const auto& p : *list) s.low = std::min(s.low, p.loss), s.high = std::max(s.high, p.loss);
  const double room = std::max(0.05 * (s.high - s.low), 0.01);
  s.low = std::floor((s.low - room) * 2) / 2;
  s.high += room;
  std::string svg = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"loss over steps\">{}", kWidth, kHeight, grid(s));
  svg += fmt::format("<path class=\"raw\" d=\"{}\"/><path class=\"line\" d=\"{}\"/>", path(curve, s), path(smooth(curve), s));
  for (const auto& p : evaluation)
    svg += fmt::format("<circle class=\"dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\"><title>step {:g}: held-out loss {:.3f}</title></circle>", s.x(p.step), s.y(p.loss), p.step, p.loss);
  return svg + "</svg>";
}

}  // namespace hpcdl::cli

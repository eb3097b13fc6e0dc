#include "tools/roofline/picture.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "tools/compare/statistics.h"
#include "tools/page/svg.h"
#include "tools/roofline/labels.h"

namespace hpcdl::lab::roofline {

namespace {

constexpr double kWidth = 1280, kHeight = 800;
constexpr Box kPlot{86, 112, 1250, 730};
constexpr double kRadius = 4.5;
constexpr double kLeastIntensity = 0.01;  // FLOP per byte: rows with less only move bytes

/// Maps intensity and operations per second to the plot, both by their logarithm.
struct Axes {
  double left, right, bottom, top;  // FLOP/byte, FLOP/s

  double x(double intensity) const {
    return kPlot.left +
           (kPlot.right - kPlot.left) * (std::log(intensity) - std::log(left)) / (std::log(right) - std::log(left));
  }
  double y(double rate) const {
    return kPlot.bottom -
           (kPlot.bottom - kPlot.top) * (std::log(rate) - std::log(bottom)) / (std::log(top) - std::log(bottom));
  }
};

double rate_of(const Row& r) { return r.cost.operations / (r.measured() ? r.seconds : r.light.seconds); }
double roof_of(const Row& r) { return r.cost.operations / r.light.seconds; }

/// What the rows of a colour multiply.
std::string words_of_class(const Report& report, const std::string& kind) {
  if (kind != "bf16") return kind == "i8" ? "int8" : kind;
  bool bf16 = false, f16 = false;
  for (const Row* r : report.all())
    for (const auto& part : r->parts) bf16 |= part.unit == Unit::bf16, f16 |= part.unit == Unit::f16;
  return bf16 && f16 ? "bf16 and f16" : f16 ? "f16" : "bf16";
}

struct Slope {
  std::string name;
  double rate;  // bytes per second
};

struct Picture {
  const Report& report;
  std::vector<const Row*> rows;                       // with arithmetic
  std::vector<Slope> slopes;                          // memory, then caches from the outside in
  std::vector<std::pair<std::string, double>> flats;  // class, operations per second
  Axes axes{};
  std::vector<Box> taken;  // texts on roofs
  std::vector<std::vector<Point>> roof_lines;
};

Picture prepare(const Report& report) {
  Picture p{.report = report, .rows = {}, .slopes = {}, .flats = {}, .taken = {}, .roof_lines = {}};
  for (const Row* r : report.all())
    if (r->cost.operations > 0 && r->cost.bytes() > 0) p.rows.push_back(r);
  p.slopes.push_back({"memory", report.roofs.memory()});
  for (auto c = report.roofs.caches.rbegin(); c != report.roofs.caches.rend(); ++c)
    p.slopes.push_back({c->name, std::max(c->read, c->copy)});
  const auto has = [&](const char* c) {
    return std::any_of(p.rows.begin(), p.rows.end(), [&](const Row* r) { return colour_class(*r) == c; });
  };
  p.flats.emplace_back("f32", report.roofs.f32);
  if (has("bf16")) p.flats.emplace_back("bf16", report.roofs.bf16);
  if (has("i8")) p.flats.emplace_back("i8", report.roofs.i8);
  double highest = 0;
  for (const auto& f : p.flats) highest = std::max(highest, f.second);
  std::erase_if(p.rows, [](const Row* r) { return r->intensity() < kLeastIntensity; });
  double low_x = 0.08, high_x = 2 * highest / report.roofs.memory(), low_y = 0.5 * low_x * report.roofs.memory(),
         high_y = highest;
  for (const Row* r : p.rows) {
    low_x = std::min(low_x, r->intensity()), high_x = std::max(high_x, r->intensity());
    low_y = std::min(low_y, rate_of(*r)), high_y = std::max(high_y, rate_of(*r));
  }
  p.axes = {low_x / 2.2, high_x * 2.2, low_y / 1.8, high_y * 1.9};
  return p;
}

std::string line(double x1, double y1, double x2, double y2, const std::string& attributes) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2,
                     attributes);
}
std::string text(double x, double y, const std::string& attributes, const std::string& words) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, attributes, escaped(words));
}
/// For a proportional font, rounded up.
double text_width(const std::string& words, double size) {
  double units = 0;
  for (const char c : words) {
    if ((c & 0xc0) == 0x80) continue;  // a continuation byte of the same character
    units += std::string_view("il.,:;|' ()-").find(c) != std::string_view::npos ? 0.39
             : std::string_view("mwMW%@+").find(c) != std::string_view::npos    ? 0.96
                                                                                : 0.63;
  }
  return units * size;
}

std::string grid(const Picture& p) {
  std::string svg = "<g class=\"grid\">\n";
  const auto& a = p.axes;
  for (int e = -3; e <= 16; ++e) {
    const double v = std::pow(10.0, e);
    if (v > a.left && v < a.right) {
      svg += line(a.x(v), kPlot.top, a.x(v), kPlot.bottom, "");
      svg += text(a.x(v), kPlot.bottom + 20, "class=\"tick\" text-anchor=\"middle\"", fmt::format("{:g}", v));
    }
    if (v > a.bottom && v < a.top) {
      svg += line(kPlot.left, a.y(v), kPlot.right, a.y(v), "");
      svg += text(kPlot.left - 9, a.y(v) + 4, "class=\"tick\" text-anchor=\"end\"",
                  v >= 1e12 ? fmt::format("{:g} T", v / 1e12) : fmt::format("{:g} G", v / 1e9));
    }
  }
  svg += text((kPlot.left + kPlot.right) / 2, kPlot.bottom + 46, "class=\"axis\" text-anchor=\"middle\"",
              "arithmetic intensity, FLOP per byte");
  const double middle = (kPlot.top + kPlot.bottom) / 2;
  svg +=
      text(24, middle, fmt::format("class=\"axis\" text-anchor=\"middle\" transform=\"rotate(-90 24 {:.1f})\"", middle),
           "operations per second");
  return svg + "</g>\n";
}

/// Words along a slope, whose area counts as taken: as a row of small boxes, since the text is rotated. If a
/// neighbouring slope has its own words, they move up: a cache may be as slow as memory.
std::string slope_words(Picture& p, const Slope& s, double from_x, double from_y, double to_x, double to_y) {
  const double dx = to_x - from_x, dy = to_y - from_y, length = std::hypot(dx, dy),
               angle = std::atan2(dy, dx) * 180 / M_PI;
  const auto words = fmt::format("{} {}", s.name, show_rate(s.rate, "B/s"));
  const double width = text_width(words, 13), last = std::max(0.0, length - width);
  const auto boxes_at = [&](double at) {
    std::vector<Box> boxes;
    for (double t = at; t < at + width; t += 8) {
      const double cx = from_x + dx / length * t + 6 * dy / length, cy = from_y + dy / length * t - 6 * dx / length;
      boxes.push_back({cx - 8, cy - 9, cx + 8, cy + 9});
    }
    return boxes;
  };
  const auto hidden = [&](const std::vector<Box>& boxes) {
    return std::any_of(boxes.begin(), boxes.end(), [&](const Box& b) {
      return std::any_of(p.taken.begin(), p.taken.end(), [&](const Box& t) { return t.overlaps(b); });
    });
  };
  double at = std::min(18.0, last);
  while (at + 12 <= last && hidden(boxes_at(at))) at += 12;
  const auto boxes = boxes_at(at);
  p.taken.insert(p.taken.end(), boxes.begin(), boxes.end());
  const double x = from_x + dx / length * at, y = from_y + dy / length * at;
  return text(x, y - 6,
              fmt::format("class=\"{}\" transform=\"rotate({:.2f} {:.1f} {:.1f})\"",
                          s.name == "memory" ? "on-memory" : "on-cache", angle, x, y),
              words);
}

std::string roofs(Picture& p) {
  const auto& a = p.axes;
  double highest = 0, lowest_flat = 1e300;
  for (const auto& f : p.flats) highest = std::max(highest, f.second), lowest_flat = std::min(lowest_flat, f.second);
  const double memory = p.slopes[0].rate;
  // The area that a kernel with f32 operands in memory can reach.
  const double ridge = lowest_flat / memory, start = std::max(a.left, a.bottom / memory);
  std::string svg = fmt::format(
      "<polygon class=\"ground\" points=\"{:.1f},{:.1f} {:.1f},{:.1f} {:.1f},{:.1f} {:.1f},{:.1f} {:.1f},{:.1f}\"/>\n",
      a.x(start), kPlot.bottom, a.x(start), a.y(start * memory), a.x(ridge), a.y(lowest_flat), kPlot.right,
      a.y(lowest_flat), kPlot.right, kPlot.bottom);
  for (const auto& s : p.slopes) {
    const double from = std::max(a.left, a.bottom / s.rate), to = highest / s.rate;
    if (to <= from) continue;
    const double x1 = a.x(from), y1 = a.y(from * s.rate), x2 = a.x(to), y2 = a.y(highest);
    svg += line(x1, y1, x2, y2, s.name == "memory" ? "class=\"memory\"" : "class=\"cache\"");
    p.roof_lines.push_back({{x1, y1}, {x2, y2}});
    svg += slope_words(p, s, x1, y1, x2, y2);
  }
  for (const auto& [kind, rate] : p.flats) {
    const double x1 = a.x(std::min(rate / memory, a.right)), y = a.y(rate);
    svg += line(x1, y, kPlot.right, y, fmt::format("class=\"flat {}\"", kind));
    p.roof_lines.push_back({{x1, y}, {kPlot.right, y}});
    const auto words =
        fmt::format("{} {}", kind == "i8" ? "int8" : kind, show_rate(rate, kind == "i8" ? "OP/s" : "FLOP/s"));
    svg += text(kPlot.right - 6, y - 7, fmt::format("class=\"on-flat {}\" text-anchor=\"end\"", kind), words);
    p.taken.push_back({kPlot.right - 10 - text_width(words, 13), y - 21, kPlot.right, y - 3});
  }
  return svg;
}

std::string details(const Row& r) {
  std::string words =
      r.source == "step" ? fmt::format("{} {} {}, x{}\n{}", r.op, r.pass, r.scope, r.count, r.shape) : r.label();
  words += fmt::format("\n{} FLOP/byte, bound by {}\nlight {}", show_intensity(r.intensity()), r.light.bound,
                       show_seconds(r.light.seconds));
  if (r.measured())
    words += fmt::format("\ntook {}: {}, {}\n{} of its roof", show_seconds(r.seconds), show_rate(rate_of(r), "FLOP/s"),
                         show_rate(r.cost.bytes() / r.seconds, "B/s"), show_share(r));
  if (r.fault()) words += "\nABOVE ITS ROOF: cost or measurement is wrong";
  return words;
}

std::string marker(const Picture& p, const Row& r, std::size_t index, bool strong) {
  const double x = p.axes.x(r.intensity()), y = p.axes.y(rate_of(r)), radius = strong ? kRadius + 1 : kRadius - 0.5;
  const bool ring = r.pass == "fwd+bwd" || r.pass == "backward";
  std::string svg = fmt::format("<g class=\"mark {}{}{}{}\" data-row=\"{}\">", colour_class(r), ring ? " ring" : "",
                                strong ? " strong" : "", r.fault() ? " fault" : "", index);
  if (r.fault()) svg += fmt::format("<path d=\"M{:.1f} {:.1f}l7 12h-14z\"/>", x, y - 8);
  else svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\"/>", x, y, radius);
  return svg + fmt::format("<title>{}</title></g>\n", escaped(details(r)));
}

/// The distance between a point and its own roof.
std::string headroom(const Picture& p, const Row& r) {
  const double x = p.axes.x(r.intensity()), top = p.axes.y(roof_of(r)), y = p.axes.y(rate_of(r));
  if (y - top < 6) return "";
  return line(x, y - kRadius, x, top, fmt::format("class=\"room {}\"", colour_class(r))) +
         line(x - 4, top, x + 4, top, fmt::format("class=\"room {}\"", colour_class(r)));
}

std::string label_words(const Row& r) {
  const auto name = r.source == "step" ? fmt::format("{} {}", r.op, r.pass)
                                       : fmt::format("{}{}", r.op, r.pass == "fwd" ? "" : " " + r.pass);
  return r.measured() ? fmt::format("{} {}  {}", name, r.shape, show_share(r)) : fmt::format("{} {}", name, r.shape);
}

std::string labels(const Picture& p, const std::vector<const Row*>& wanted) {
  constexpr double kSize = 11.5;
  LabelSpace space{.frame = {kPlot.left + 4, kPlot.top + 4, kPlot.right - 4, kPlot.bottom - 4},
                   .taken = p.taken,
                   .markers = {},
                   .lines = p.roof_lines};
  for (const Row* r : p.rows) space.markers.push_back({p.axes.x(r->intensity()), p.axes.y(rate_of(*r))});
  std::vector<Point> points, sizes;
  for (const Row* r : wanted) {
    points.push_back({p.axes.x(r->intensity()), p.axes.y(rate_of(*r))});
    sizes.push_back({text_width(label_words(*r), kSize) + 4, kSize + 4});
  }
  std::string lines, words;
  for (const auto& l : place_labels(space, points, sizes)) {
    const Row& r = *wanted[l.point];
    if (l.leader)
      lines += line(l.tip.x, l.tip.y, points[l.point].x, points[l.point].y,
                    fmt::format("class=\"leader {}\"", colour_class(r)));
    words += text(l.box.left + 2, l.box.bottom - 4,
                  fmt::format("class=\"label {}{}\"", colour_class(r),
                              r.fault()            ? " fault"
                              : r.source == "seed" ? " seed"
                                                   : ""),
                  label_words(r));
  }
  return "<g class=\"leaders\">\n" + lines + "</g>\n<g class=\"labels\">\n" + words + "</g>\n";
}

/// In the free area right below the roofs: the share of its roof of every kernel, by what bounds it.
std::string shares(Picture& p) {
  std::map<int, std::pair<std::string, std::vector<const Row*>>> groups;
  for (const Row* r : p.report.all()) {
    if (!r->measured()) continue;
    const auto kind = colour_class(*r);
    auto& group = r->light.by_arithmetic() ? groups[kind == "f32"    ? 2
                                                    : kind == "bf16" ? 3
                                                                     : 4]
                                           : groups[r->light.bound == "memory" ? 0 : 1];
    group.first = r->light.by_arithmetic()     ? words_of_class(p.report, kind) + " arithmetic"
                  : r->light.bound == "memory" ? "memory"
                                               : "caches";
    group.second.push_back(r);
  }
  if (groups.empty()) return "";
  const double height = 36 + 22 * static_cast<double>(groups.size());
  const Box box{kPlot.right - 396, kPlot.bottom - height - 12, kPlot.right - 12, kPlot.bottom - 12};
  p.taken.push_back(box);
  std::string svg =
      fmt::format("<rect class=\"inset\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"6\"/>\n",
                  box.left, box.top, box.right - box.left, height);
  svg += text(box.left + 14, box.top + 20, "class=\"inset-title\"", "Share of its roof: every kernel, and the median");
  const double left = box.left + 116, right = box.right - 58;
  double y = box.top + 40;
  for (const auto& [order, group] : groups) {
    std::vector<double> values;
    svg += text(left - 12, y + 4, "class=\"inset-name\" text-anchor=\"end\"", group.first) +
           line(left, y, right, y, "class=\"track\"");
    const auto x = [&](double share) { return left + (right - left) * std::min(share, 1.0); };
    for (const Row* r : group.second) {
      values.push_back(r->share());
      svg += fmt::format("<circle class=\"dot {}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.4\"/>\n", colour_class(*r),
                         x(r->share()), y);
    }
    const double median = compare::median(std::move(values));
    svg += line(x(median), y - 8, x(median), y + 8, "class=\"median\"") +
           text(right + 12, y + 4, "class=\"inset-value\"", fmt::format("{:.0f} %", 100 * median));
    y += 22;
  }
  return svg;
}

std::string head(const Picture& p) {
  const auto& r = p.report;
  const auto faults = std::count_if(p.rows.begin(), p.rows.end(), [](const Row* row) { return row->fault(); });
  const std::string title =
      faults ? fmt::format("{} of {} above the roof: a cost or a measurement is wrong", faults, p.rows.size())
      : r.config.empty() ? "Every kernel under its roof"
                         : "A training step under the roof";
  std::string svg = text(kPlot.left - 56, 40, "class=\"title\"", title);
  const auto measured = std::count_if(p.rows.begin(), p.rows.end(), [](const Row* row) { return row->measured(); });
  svg += text(kPlot.left - 56, 64, "class=\"subtitle\"",
              fmt::format("{}, {}. {} {}. Roofs measured on this machine{}.", r.title(), r.details(), p.rows.size(),
                          measured ? "kernels, medians" : "kernels at the speed of light",
                          r.date.empty() ? "" : ", " + r.date));
  double x = kPlot.left - 50;
  const auto entry = [&](const std::string& mark, const std::string& words) {
    svg += fmt::format(fmt::runtime(mark), x, 87.0) + text(x + 11, 91, "class=\"legend\"", words);
    x += 30 + text_width(words, 12.5);
  };
  for (const auto& [kind, rate] : p.flats)
    entry("<circle class=\"mark " + kind + "\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\"/>\n",
          words_of_class(r, kind) + " operands");
  entry("<circle class=\"mark key\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\"/>\n", "forward");
  entry("<circle class=\"mark key ring\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\"/>\n",
        p.report.config.empty() ? "forward and backward" : "backward");
  svg += line(x + 2, 80, x + 2, 94, "class=\"room key\"") + line(x - 2, 80, x + 6, 80, "class=\"room key\"") +
         text(x + 14, 91, "class=\"legend\"", "what is left to its own roof; % is the share reached");
  return svg;
}

}  // namespace

std::string to_svg(const Report& report) {
  Picture p = prepare(report);
  const auto wanted = labelled(p.rows);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"roofline\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" role=\"img\" "
      "font-family=\"Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'Liberation Sans', "
      "sans-serif\">\n<title>{2}</title>\n<style>\n{3}@media (prefers-color-scheme: dark) {{\n{4}}}\n</style>\n",
      kWidth, kHeight, escaped(fmt::format("Roofline of {}", report.title())), picture_rules("", false),
      picture_rules("", true));
  svg +=
      fmt::format("<rect class=\"paper\" width=\"{:.0f}\" height=\"{:.0f}\"/>\n", kWidth, kHeight) + head(p) + grid(p);
  svg += roofs(p);
  svg += shares(p);
  svg += "<g class=\"rooms\">\n";
  for (const Row* r : wanted) svg += headroom(p, *r);
  svg += "</g>\n<g class=\"marks\">\n";
  const auto all = report.all();
  for (const bool strong : {false, true})
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool has_label = std::find(wanted.begin(), wanted.end(), all[i]) != wanted.end();
      if (has_label == strong && std::find(p.rows.begin(), p.rows.end(), all[i]) != p.rows.end())
        svg += marker(p, *all[i], i, strong);
    }
  svg += "</g>\n" + labels(p, wanted);
  const auto without = static_cast<long>(all.size()) - static_cast<long>(p.rows.size());
  if (without > 0)
    svg += text(kPlot.right, kPlot.bottom + 46, "class=\"note\" text-anchor=\"end\"",
                fmt::format("{} rows that only move bytes (fill, cast, ...) are in the table", without));
  return svg + "</svg>\n";
}

}  // namespace hpcdl::lab::roofline

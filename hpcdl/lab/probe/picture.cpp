// Bandwidth over working set: the staircase of the caches, as a self-contained SVG.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "hpcdl/core/units.h"
#include "hpcdl/lab/page/svg.h"
#include "hpcdl/lab/probe/probe.h"
#include "hpcdl/lab/probe/sweeps.h"

namespace hpcdl::lab {

namespace {

constexpr double kWidth = 1040, kHeight = 600, kLeft = 76, kRight = 176, kTop = 104, kBottom = 64,
                 kNames = 42;  // of the levels, below kTop
constexpr const char* kBands[] = {"var(--band0)", "var(--band1)"};

struct Line {
  std::string name, colour, dash;
  cpu::Sweep sweep;
  int threads;
  double width;
  std::vector<const Bandwidth*> points;
};

struct Scale {
  double first, last, low, high;
  double x(double bytes) const {
    return kLeft + (kWidth - kLeft - kRight) * std::log(bytes / first) / std::log(last / first);
  }
  double y(double rate) const {
    return kTop + (kHeight - kTop - kBottom) * std::log(high / rate) / std::log(high / low);
  }
};

std::string size(double bytes) {
  for (const auto& [unit, name] : {std::pair{1073741824.0, "GiB"}, {1048576.0, "MiB"}, {1024.0, "KiB"}})
    if (bytes >= unit) return fmt::format("{:.4g} {}", bytes / unit, name);
  return fmt::format("{:.0f} B", bytes);
}

std::string label(double x, double y, const std::string& classes, const std::string& text,
                  const std::string& anchor = "start", const std::string& more = "") {
  return fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", classes, x, y,
                     anchor, more, escaped(text));
}

std::vector<Line> lines(const Probe& p) {
  int most = 1;
  for (const auto& s : p.stairs) most = std::max(most, s.threads);
  std::vector<Line> list;
  const auto add = [&](const std::string& name, const char* colour, cpu::Sweep sweep, int threads, double width,
                       const char* dash) {
    Line l{name, colour, dash, sweep, threads, width, {}};
    for (const auto& s : p.stairs)
      if (s.sweep == sweep && s.threads == threads && s.rate.measured()) l.points.push_back(&s);
    if (l.points.size() > 1) list.push_back(std::move(l));
  };
  if (most > 1) {
    add("read", "var(--read)", cpu::Sweep::read, 1, 1.6, "5 4");
    add("copy", "var(--copy)", cpu::Sweep::copy, 1, 1.6, "5 4");
    add("streaming copy", "var(--streaming)", cpu::Sweep::copy_streaming, 1, 1.6, "5 4");
  }
  add("read", "var(--read)", cpu::Sweep::read, most, 2.6, "");
  add("copy", "var(--copy)", cpu::Sweep::copy, most, 2.6, "");
  add("streaming copy", "var(--streaming)", cpu::Sweep::copy_streaming, most, 2.6, "");
  return list;
}

Scale scale_of(const std::vector<Line>& all) {
  Scale s{1e300, 0, 1e300, 0};
  for (const auto& l : all)
    for (const auto* p : l.points) {
      s.first = std::min(s.first, p->bytes_per_thread), s.last = std::max(s.last, p->bytes_per_thread);
      s.low = std::min(s.low, p->rate.median), s.high = std::max(s.high, p->rate.median);
    }
  s.first = std::exp2(std::floor(std::log2(s.first))), s.low /= 1.35,
  s.high *= 2.6;  // room for the names of the levels
  return s;
}

/// Levels as bands. Between its share with all threads and its whole size, a shared cache holds a decreasing part: a
/// fading band.
std::string bands(const Probe& p, const Scale& s, int threads) {
  std::string svg;
  double from = s.first;
  const double height = kHeight - kTop - kBottom;
  const auto rect = [&](double a, double b, const std::string& fill) {
    a = std::clamp(a, s.first, s.last), b = std::clamp(b, s.first, s.last);
    if (b > a)
      svg += fmt::format("<rect x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" style=\"fill:{}\"/>\n", s.x(a),
                         kTop, s.x(b) - s.x(a), height, fill);
  };
  const auto name = [&](double a, double b, const std::string& text, const std::string& below) {
    a = std::clamp(a, s.first, s.last), b = std::clamp(b, s.first, s.last);
    if (s.x(b) - s.x(a) < 30) return;
    svg += label((s.x(a) + s.x(b)) / 2, kTop + 20, "level", text, "middle") +
           label((s.x(a) + s.x(b)) / 2, kTop + 36, "tick", below, "middle");
  };
  int i = 0;
  for (const auto& c : p.machine.caches) {
    const int n = sharers(c, threads);
    const double share = static_cast<double>(c.bytes / n), whole = static_cast<double>(c.bytes);
    rect(from, share, kBands[i % 2]);
    name(from, share, fmt::format("L{}", c.level),
         n > 1 ? fmt::format("{} for {} threads", size(whole), n) : size(whole));
    if (whole > share) {
      rect(share, whole, fmt::format("url(#fade{})", i % 2));
      from = whole;
    } else {
      from = share;
    }
    ++i;
  }
  name(from, s.last, "memory", size(static_cast<double>(p.machine.memory_total)));
  return svg;
}

std::string grid(const Scale& s) {
  std::string svg;
  const double bottom = kHeight - kBottom;
  for (double power = 1; power < 1e7; power *= 10)
    for (const double m : {1.0, 2.0, 5.0})
      if (const double rate = m * power * 1e9; rate >= s.low && rate <= s.high && s.y(rate) > kTop + kNames)
        svg += fmt::format("<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>\n", kLeft,
                           kWidth - kRight, s.y(rate)) +
               label(kLeft - 10, s.y(rate) + 4, "tick", fmt::format("{:g}", m * power), "end");
  const double octaves = std::log2(s.last / s.first), step = octaves > 12 ? 2 : 1;
  for (double bytes = s.first; bytes <= s.last * 1.001; bytes *= std::exp2(step))
    svg += fmt::format("<line class=\"axis\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>\n", s.x(bytes),
                       bottom, bottom + 5) +
           label(s.x(bytes), bottom + 20, "tick", size(bytes), "middle");
  svg += fmt::format("<line class=\"axis\" x1=\"{0}\" x2=\"{1}\" y1=\"{2}\" y2=\"{2}\"/>\n", kLeft, kWidth - kRight,
                     bottom);
  svg += label((kLeft + kWidth - kRight) / 2, kHeight - 16, "name", "working set of one thread", "middle");
  svg += label(0, 0, "name", "GB/s, all threads together", "middle",
               fmt::format(" transform=\"translate(22 {:.0f}) rotate(-90)\"", (kTop + bottom) / 2));
  return svg;
}

std::string curve(const Line& l, const Scale& s) {
  std::string path, dots;
  for (const auto* p : l.points) {
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", s.x(p->bytes_per_thread), s.y(p->rate.median));
    dots += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"7\" fill=\"transparent\"><title>{}, {} threads, {}: {:.1f} GB/s (min "
        "{:.1f}, max {:.1f}, {} rounds)</title></circle>\n",
        s.x(p->bytes_per_thread), s.y(p->rate.median), l.name, l.threads, size(p->bytes_per_thread),
        p->rate.median / 1e9, p->rate.min / 1e9, p->rate.max / 1e9, p->rate.rounds);
  }
  return fmt::format(
      "<path d=\"{}\" fill=\"none\" style=\"stroke:{}\" stroke-width=\"{}\" stroke-dasharray=\"{}\" "
      "stroke-linejoin=\"round\" stroke-linecap=\"round\"/>\n{}",
      path, l.colour, l.width, l.dash.empty() ? "none" : l.dash, dots);
}

/// Names of the thick lines at their right ends, pushed apart, with their values there.
std::string names(const std::vector<Line>& all, const Scale& s) {
  std::vector<std::pair<double, const Line*>> order;
  for (const auto& l : all)
    if (l.dash.empty()) order.emplace_back(s.y(l.points.back()->rate.median) + 4, &l);
  std::sort(order.begin(), order.end());
  std::string svg;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i > 0) order[i].first = std::max(order[i].first, order[i - 1].first + 32);
    const auto& l = *order[i].second;
    const auto fill = fmt::format(" style=\"fill:{}\"", l.colour);
    svg += label(kWidth - kRight + 12, order[i].first, "line", l.name, "start", fill) +
           label(kWidth - kRight + 12, order[i].first + 15, "tick",
                 fmt::format("{:.1f} GB/s", l.points.back()->rate.median / 1e9), "start", fill);
  }
  return svg;
}

/// The read bandwidth within each level, from the bandwidth table, at the position of the thick line.
std::string plateaus(const Probe& p, const Line& read, const Scale& s) {
  std::string svg;
  for (const auto& b : p.bandwidth) {
    if (b.sweep != cpu::Sweep::read || b.threads != read.threads || !b.rate.measured() || b.level == "memory") continue;
    const auto near = std::min_element(read.points.begin(), read.points.end(), [&](auto* a, auto* c) {
      return std::fabs(std::log(a->bytes_per_thread / b.bytes_per_thread)) <
             std::fabs(std::log(c->bytes_per_thread / b.bytes_per_thread));
    });
    svg += label(s.x((*near)->bytes_per_thread), s.y((*near)->rate.median) - 10, "value",
                 fmt::format("{:.0f}", b.rate.median / 1e9), "middle", fmt::format(" style=\"fill:{}\"", read.colour));
  }
  return svg;
}

constexpr const char* kStyle = R"svg(<style>
svg{--page:#fff;--ink:#223;--soft:#5a6475;--name:#3c4657;--grid:#d8dee8;--axis:#8a94a6;--band0:#eef4fb;--band1:#f6f9fd;--read:#1f6fb4;--copy:#d9662b;--streaming:#2e8b57}
@media(prefers-color-scheme:dark){svg{--page:#0f1520;--ink:#e6ebf2;--soft:#a3b0c2;--name:#c3cddb;--grid:#2b3648;--axis:#64748b;--band0:#182234;--band1:#131b2a;--read:#6bb3f2;--copy:#f29a68;--streaming:#5fc790}}
text{font-family:-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,"DejaVu Sans",sans-serif;fill:var(--ink)}
.title{font-size:21px;font-weight:600}.sub{font-size:13.5px;fill:var(--soft)}.tick{font-size:12px;fill:var(--soft)}.name{font-size:13px;fill:var(--name)}
.level{font-size:15px;font-weight:600;fill:var(--name)}.line{font-size:13.5px;font-weight:600}.value{font-size:13px;font-weight:600;paint-order:stroke;stroke:var(--page);stroke-width:4px}
.page{fill:var(--page)}.grid{stroke:var(--grid);stroke-width:1}.axis{stroke:var(--axis);stroke-width:1}
</style>
<defs><linearGradient id="fade0"><stop offset="0" style="stop-color:var(--band0)"/><stop offset="1" style="stop-color:var(--page)"/></linearGradient>
<linearGradient id="fade1"><stop offset="0" style="stop-color:var(--band1)"/><stop offset="1" style="stop-color:var(--page)"/></linearGradient></defs>
)svg";

}  // namespace

std::string to_svg(const Probe& p) {
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\" "
      "aria-label=\"bandwidth over working set\">\n"
      "{2}<rect width=\"{0}\" height=\"{1}\" class=\"page\"/>\n",
      kWidth, kHeight, kStyle);
  const auto all = lines(p);
  if (all.empty()) return svg + label(kLeft, 60, "title", "nothing was measured") + "</svg>\n";
  const auto s = scale_of(all);
  const Line* read = nullptr;
  for (const auto& l : all)
    if (l.sweep == cpu::Sweep::read) read = &l;
  const int threads = all.back().threads;
  svg += label(kLeft, 40, "title", "Memory bandwidth of this machine");
  svg += label(
      kLeft, 64, "sub",
      fmt::format("{} · {} · {} · medians of {} rounds · {}{}", p.machine.cpu.empty() ? "unknown CPU" : p.machine.cpu,
                  p.isa, p.machine.kernel, all.back().points.front()->rate.rounds, p.date.substr(0, 10),
                  p.quick ? " · made with --quick" : ""));
  svg += label(kLeft, 84, "sub",
               all.front().dash.empty() ? fmt::format("{} thread{}", threads, threads == 1 ? "" : "s")
                                        : fmt::format("thick: {} threads, dashed: 1 thread", threads));
  svg += bands(p, s, threads) + grid(s);
  for (const auto& l : all) svg += curve(l, s);
  if (read) svg += plateaus(p, *read, s);
  return svg + names(all, s) + "</svg>\n";
}

}  // namespace hpcdl::lab

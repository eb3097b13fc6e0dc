// The output of bench comm: a table and a picture.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "hpcdl/lab/comm/bench.h"

namespace hpcdl::lab {

namespace {

std::string size(double bytes) {
  for (const auto& [unit, name] : {std::pair{1073741824.0, "GiB"}, {1048576.0, "MiB"}, {1024.0, "KiB"}})
    if (bytes >= unit) return fmt::format("{:.4g} {}", bytes / unit, name);
  return fmt::format("{:.0f} B", bytes);
}

std::vector<CommSide> all_sides(const std::vector<CommRow>& rows) {
  std::vector<CommSide> list;
  for (const auto& row : rows)
    for (const auto& r : row.results)
      if (std::find(list.begin(), list.end(), r.side) == list.end()) list.push_back(r.side);
  return list;
}

const CommResult* result_of(const CommRow& row, const CommSide& side) {
  for (const auto& r : row.results)
    if (r.side == side) return &r;
  return nullptr;
}

constexpr double kWidth = 1040, kHeight = 600, kLeft = 76, kRight = 190, kTop = 64, kBottom = 64;
constexpr const char* kColours[] = {"#1f6fb4", "#7fb2dd", "#d9662b", "#2e8b57", "#8a56b5",
                                    "#b5272d", "#c79a00", "#0f9aa8", "#7a5a3a"};
constexpr const char* kStyle =
    "<style>text{font:13px "
    "system-ui,sans-serif;fill:#333}.title{font-size:18px;font-weight:600}.tick{fill:#667;font-size:12px}"
    ".grid{stroke:#dde3ea}.axis{stroke:#889}"
    "@media(prefers-color-scheme:dark){text{fill:#e6ebf2}.tick{fill:#94a3b8}.grid{stroke:#2b3648}.paper{fill:#0f1520}"
    "[stroke='#222']{stroke:#e6ebf2}.name[style*='#222']{fill:#e6ebf2!important}}"
    "</style>\n";

struct Chart {
  double first = 1e300, last = 0, low = 1e300, high = 0;
  double x(double bytes) const {
    return kLeft + (kWidth - kLeft - kRight) * std::log(bytes / first) / std::log(last / first);
  }
  double y(double rate) const {
    return kTop + (kHeight - kTop - kBottom) * std::log(high / rate) / std::log(high / low);
  }
};

Chart chart_of(const std::vector<CommRow>& rows, int ranks) {
  Chart c;
  for (const auto& row : rows) {
    c.first = std::min(c.first, static_cast<double>(row.what.bytes)),
    c.last = std::max(c.last, static_cast<double>(row.what.bytes));
    for (const auto& r : row.results)
      c.low = std::min(c.low, r.busbw(row.what, ranks)), c.high = std::max(c.high, r.busbw(row.what, ranks));
  }
  const double room = c.high > c.low * 2 ? 1.4 : 1.6;  // so that it always contains a grid line at 1, 2 or 5
  c.last = std::max(c.last, c.first * 2), c.low /= room, c.high *= room;
  return c;
}

std::string text(double x, double y, const char* kind, const std::string& words, const char* anchor = "start",
                 const std::string& more = "") {
  return fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", kind, x, y,
                     anchor, more, words);
}

std::string axes(const Chart& c) {
  std::string svg;
  const double bottom = kHeight - kBottom;
  const bool few = c.high < 100 * c.low;  // powers of ten in it
  for (int e = -6; e < 4; ++e)
    for (const int m : {1, 2, 5})
      if (const double shown = m * std::pow(10, e), rate = shown * 1e9;
          rate >= c.low && rate <= c.high && (m == 1 || few))
        svg += fmt::format("<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>\n", kLeft,
                           kWidth - kRight, c.y(rate)) +
               text(kLeft - 10, c.y(rate) + 4, "tick", fmt::format("{:.{}f}", shown, std::max(0, -e)), "end");
  for (double bytes = c.first; bytes <= c.last * 1.001; bytes *= 16)
    svg += fmt::format("<line class=\"axis\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>\n", c.x(bytes),
                       bottom, bottom + 5) +
           text(c.x(bytes), bottom + 20, "tick", size(bytes), "middle");
  svg += fmt::format("<line class=\"axis\" x1=\"{0}\" x2=\"{1}\" y1=\"{2}\" y2=\"{2}\"/>\n", kLeft, kWidth - kRight,
                     bottom);
  svg += text((kLeft + kWidth - kRight) / 2, kHeight - 16, "name", "bytes of a rank's tensor", "middle");
  return svg + text(0, 0, "name", "bus bandwidth, GB/s", "middle",
                    fmt::format(" transform=\"translate(20 {:.0f}) rotate(-90)\"", (kTop + bottom) / 2));
}

struct Curve {
  std::string name, colour, path;
  bool native = false;
  double end = 0, label = 0;  // y
};

/// "3.1 us", "15.81 ms": at most four digits, without a power of ten.
std::string time(double seconds) {
  return seconds < 9.9995e-3 ? fmt::format("{:.4g} us", seconds * 1e6) : fmt::format("{:.4g} ms", seconds * 1e3);
}

/// Names next to the ends of curves, from the highest down, at least a line apart.
void place(std::vector<Curve>& curves) {
  std::sort(curves.begin(), curves.end(), [](const Curve& a, const Curve& b) { return a.end < b.end; });
  double next = kTop;
  for (auto& c : curves) c.label = std::max(c.end, next), next = c.label + 17;
  const double over = next - 17 - (kHeight - kBottom);
  if (over > 0)
    for (auto& c : curves) c.label -= over;
}

}  // namespace

std::string comm_table(const std::vector<CommRow>& rows, int ranks) {
  const auto sides = all_sides(rows);
  std::string out = fmt::format("{:>10}", "bytes");
  for (const auto& s : sides) out += fmt::format("  {:>20}", s.name());
  out += "\n";
  for (const auto& row : rows) {
    out += fmt::format("{:>10}", size(static_cast<double>(row.what.bytes)));
    for (const auto& s : sides) {
      const auto* r = result_of(row, s);
      if (!r) out += fmt::format("  {:>20}", "-");
      else
        out += fmt::format("  {:>20}", fmt::format("{}{}", time(r->seconds.median),
                                                   r->ratio && s.algorithm != comm::Algorithm::native
                                                       ? fmt::format(" x{:.2f}", r->ratio->median)
                                                       : ""));
    }
    out += "\n";
  }
  const bool compared = std::any_of(rows.begin(), rows.end(), [](const CommRow& row) {
    return std::any_of(row.results.begin(), row.results.end(), [](const CommResult& r) { return r.ratio.has_value(); });
  });
  return out + fmt::format("{} ranks; {}\n", ranks,
                           compared ? "x: how many times as fast as native, in the same rounds"
                                    : "native, the reference, was not measured");
}

std::string comm_picture(const std::vector<CommRow>& rows, const std::string& title, int ranks) {
  const Chart chart = chart_of(rows, ranks);
  std::vector<Curve> curves;
  for (const auto& side : all_sides(rows)) {
    Curve c{side.name(), kColours[curves.size() % std::size(kColours)], "", side.algorithm == comm::Algorithm::native};
    if (c.native) c.colour = "#222";
    for (const auto& row : rows)
      if (const auto* r = result_of(row, side)) {
        c.end = chart.y(r->busbw(row.what, ranks));
        c.path += fmt::format("{}{:.1f} {:.1f}", c.path.empty() ? "M" : "L",
                              chart.x(static_cast<double>(row.what.bytes)), c.end);
      }
    curves.push_back(std::move(c));
  }
  place(curves);
  std::string svg =
      fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\">\n",
                  kWidth, kHeight) +
      kStyle + fmt::format("<rect class=\"paper\" width=\"{}\" height=\"{}\" fill=\"#fff\"/>\n", kWidth, kHeight) +
      text(kLeft, 34, "title", title) + axes(chart);
  for (const auto& c : curves) {
    if (rows.size() == 1)  // a line with one point is not visible
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"/>\n", chart.x(chart.first), c.end,
                         c.colour);
    svg += fmt::format(
        "<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-dasharray=\"{}\" "
        "stroke-linejoin=\"round\"/>\n",
        c.path, c.colour, c.native ? 3 : 2.2, c.native ? "7 5" : "none");
    svg += fmt::format("<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{3:.1f}\" stroke=\"{4}\"/>\n",
                       kWidth - kRight + 2, kWidth - kRight + 14, c.end, c.label, c.colour);
    svg +=
        text(kWidth - kRight + 18, c.label + 4, "name", c.name, "start", fmt::format(" style=\"fill:{}\"", c.colour));
  }
  return svg + "</svg>\n";
}

}  // namespace hpcdl::lab

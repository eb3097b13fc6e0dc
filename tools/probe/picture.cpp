// Bandwidth over working set: the staircase of the caches.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/page/page.h"
#include "tools/page/svg.h"
#include "tools/probe/probe.h"
#include "tools/probe/sweeps.h"

namespace hpcdl::lab {

namespace {

struct Kind {
  cpu::Sweep sweep;
  const char* name;
};
constexpr Kind kKinds[] = {
    {cpu::Sweep::read, "read"}, {cpu::Sweep::copy, "copy"}, {cpu::Sweep::copy_streaming, "streaming copy"}};

/// Empty where fewer than two steps were measured.
Series series_of(const Probe& p, int kind, int threads) {
  Series s{.name = kKinds[kind].name, .points = {}, .colour = kind};
  for (const auto& b : p.stairs) {
    if (b.sweep != kKinds[kind].sweep || b.threads != threads || !b.rate.measured()) continue;
    s.points.emplace_back(b.bytes_per_thread, b.rate.median / 1e9);
    s.note = fmt::format("{:.1f} GB/s", b.rate.median / 1e9);
    s.tips.push_back(fmt::format("{}, {} threads, {}: {:.1f} GB/s (min {:.1f}, max {:.1f}, {} rounds)", s.name, threads,
                                 size_text(b.bytes_per_thread), b.rate.median / 1e9, b.rate.min / 1e9, b.rate.max / 1e9,
                                 b.rate.rounds));
  }
  if (s.points.size() < 2) s.points.clear();
  return s;
}

/// Between its share with all threads and its whole size, a shared cache holds a decreasing part: a fading band.
std::vector<Band> bands(const Probe& p, int threads) {
  std::vector<Band> list;
  double from = 1;
  for (const auto& c : p.machine.caches) {
    const int n = sharers(c, threads);
    const double share = static_cast<double>(c.bytes / n), whole = static_cast<double>(c.bytes);
    const auto size = n > 1 ? fmt::format("{} for {} threads", size_text(whole), n) : size_text(whole);
    list.push_back({from, share, fmt::format("L{}", c.level), size});
    if (whole > share) list.push_back({share, whole, "", "", true});
    from = whole;
  }
  list.push_back({from, 1e18, "memory", size_text(static_cast<double>(p.machine.memory_total))});
  return list;
}

/// The read bandwidth within each level, from the bandwidth table, at the position of the line.
std::vector<Mark> plateaus(const Probe& p, const Series& read, int threads) {
  std::vector<Mark> marks;
  for (const auto& b : p.bandwidth) {
    if (b.sweep != cpu::Sweep::read || b.threads != threads || !b.rate.measured() || b.level == "memory") continue;
    const auto distance = [&](const auto& point) { return std::fabs(std::log(point.first / b.bytes_per_thread)); };
    const auto near = std::min_element(read.points.begin(), read.points.end(),
                                       [&](const auto& a, const auto& c) { return distance(a) < distance(c); });
    if (near != read.points.end())
      marks.push_back({near->first, near->second, fmt::format("{:.0f}", b.rate.median / 1e9), read.colour});
  }
  return marks;
}

}  // namespace

std::string to_svg(const Probe& p) {
  int most = 1, rounds = 0;
  for (const auto& s : p.stairs) most = std::max(most, s.threads), rounds = std::max(rounds, s.rate.rounds);
  LineChart chart{.x = "working set of one thread", .y = "GB/s, all threads together", .series = {}, .sizes = true};
  for (const int threads : most > 1 ? std::vector{1, most} : std::vector{1})
    for (int kind = 0; kind < 3; ++kind)
      chart.series.push_back(series_of(p, kind, threads)), chart.series.back().dashed = threads < most;
  const Series& read = chart.series[chart.series.size() - 3];
  if (read.points.empty())
    return svg_begin(kChartWidth, 100, "no bandwidth") + svg_text(16, 60, "start", "nothing was measured", "title") +
           "</svg>\n";
  chart.title = "Memory bandwidth of this machine";
  chart.subtitles = {
      fmt::format("{} · {} · {} · medians of {} rounds · {}{}", p.machine.cpu.empty() ? "unknown CPU" : p.machine.cpu,
                  p.isa, p.machine.kernel, rounds, p.date.substr(0, 10), p.quick ? " · made with --quick" : ""),
      most == 1 ? "1 thread" : fmt::format("thick: {} threads, dashed: 1 thread", most)};
  chart.bands = bands(p, most);
  chart.marks = plateaus(p, read, most);
  return svg(chart);
}

}  // namespace hpcdl::lab

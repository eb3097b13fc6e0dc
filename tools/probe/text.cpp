#include <fmt/format.h>

#include <algorithm>

#include "hpcdl/core/units.h"
#include "tools/probe/probe.h"
#include "tools/words.h"

namespace hpcdl::lab {

namespace {

using Cells = std::vector<std::string>;

std::string rate(const Figure& f, double unit) { return f.measured() ? three_digits(f.median / unit) : "-"; }

std::string time(const Figure& f) {
  if (!f.measured()) return "-";
  const double ns = f.median * 1e9;
  return ns < 1e3   ? three_digits(ns) + " ns"
         : ns < 1e6 ? three_digits(ns / 1e3) + " us"
                    : three_digits(ns / 1e6) + " ms";
}

/// A heading, names of columns, and rows of a label, a quantity and numbers.
class TextTable {
 public:
  TextTable(std::string title, Cells columns, std::string last = "spread") : columns_(std::move(columns)) {
    text_ = fmt::format("\n{:<32}", title);
    for (const auto& c : columns_) text_ += fmt::format("{:>11}", c);
    text_ += fmt::format("{:>11}\n", last);
  }
  void row(const std::string& label, const std::string& what, const Cells& cells, double spread) {
    text_ += fmt::format("  {:<12}{:<18}", label == label_ ? "" : label, what);
    for (const auto& c : cells) text_ += fmt::format("{:>11}", c);
    text_ += fmt::format("{:>11}\n", spread < 0 ? "" : fmt::format("{:.0f} %", 100 * spread));
    label_ = label;
  }
  std::string text() const { return text_; }

 private:
  Cells columns_;
  std::string text_, label_;
};

std::string head(const Probe& p) {
  const auto& m = p.machine;
  std::string s = fmt::format("{}, {} of {} CPUs, {}, {}, {}\n", m.cpu.empty() ? "unknown CPU" : m.cpu, m.cpus_allowed,
                              m.cpus_online, m.isa_best, format_bytes(static_cast<double>(m.memory_total)), m.kernel);
  int rounds = 0;
  for (const auto& b : p.bandwidth) rounds = std::max(rounds, b.rate.rounds);
  for (const auto& g : p.gpus)
    for (const auto& b : g.bandwidth) rounds = std::max(rounds, b.rate.rounds);
  if (p.quick) s += std::string(kQuickCaveat) + "\n";
  return s + fmt::format("medians of {} rounds in {:.1f} s; spread: largest (max - min) / median of a row\n", rounds,
                         p.seconds);
}

std::string bandwidth(const Probe& p) {
  Cells levels, sizes;
  for (const auto& c : p.machine.caches)
    levels.push_back(fmt::format("L{}", c.level)), sizes.push_back(format_bytes(static_cast<double>(c.bytes)));
  levels.push_back("memory"), sizes.push_back("");
  TextTable table("bandwidth, GB/s", levels);
  for (std::size_t i = 0; i < p.bandwidth.size(); i += levels.size()) {
    Cells cells;
    double spread = 0;
    for (std::size_t k = i; k < i + levels.size(); ++k)
      cells.push_back(rate(p.bandwidth[k].rate, 1e9)), spread = std::max(spread, p.bandwidth[k].rate.spread());
    table.row(plural(p.bandwidth[i].threads, "thread"), std::string(sweep_name(p.bandwidth[i].sweep)), cells, spread);
  }
  Cells cells;
  double spread = 0;
  for (const auto& l : p.latency) cells.push_back(time(l.seconds)), spread = std::max(spread, l.seconds.spread());
  table.row("latency", "dependent load", cells, spread);
  table.row("size", "of one cache", sizes, -1);
  return table.text();
}

std::string peaks(const Probe& p) {
  Cells dtypes;
  for (const auto& x : p.peaks)
    if (std::find(dtypes.begin(), dtypes.end(), x.dtype) == dtypes.end()) dtypes.push_back(x.dtype);
  TextTable table("peak, GFLOP/s (i8: GOP/s)", dtypes);
  std::vector<const Peak*> order;
  for (const auto& x : p.peaks) order.push_back(&x);
  std::stable_sort(order.begin(), order.end(), [](auto* a, auto* b) {
    return a->isa != b->isa && a->threads == b->threads ? false : a->threads < b->threads;
  });
  for (std::size_t i = 0; i < order.size(); i += dtypes.size()) {
    Cells cells;
    double spread = 0;
    for (std::size_t k = i; k < i + dtypes.size(); ++k)
      cells.push_back(rate(order[k]->rate, 1e9)), spread = std::max(spread, order[k]->rate.spread());
    table.row(plural(order[i]->threads, "thread"), order[i]->isa, cells, spread);
  }
  return table.text();
}

std::string overheads(const Probe& p) {
  TextTable table("overheads", {"median", "min", "max"});
  const auto row = [&](const std::string& label, const std::string& what, const Figure& f) {
    if (f.measured())
      table.row(label, what, {time(f), time({f.min, f.min, f.min, 1}), time({f.max, f.max, f.max, 1})}, f.spread());
  };
  for (const auto& l : p.launch) {
    row("launch", plural(l.threads, "thread"), l.awake);
    row("launch", "  after a sleep", l.asleep);
  }
  row("replay", "empty record", p.replay_empty);
  row("replay", "relu of 16", p.replay_small);
  for (const auto& c : p.core_to_core) row("one way", fmt::format("CPU {} to {}", c.from, c.to), c.seconds);
  return table.text();
}

std::string rates(const Probe& p) {
  TextTable table("pages and disk, GB/s", {"median", "min", "max"});
  const auto row = [&](const std::string& label, const std::string& what, const Figure& f) {
    if (f.measured())
      table.row(label, what, {rate(f, 1e9), three_digits(f.min / 1e9), three_digits(f.max / 1e9)}, f.spread());
  };
  for (const auto& f : p.first_touch) row("first touch", fmt::format("{} pages, {}T", f.pages, f.threads), f.rate);
  const auto& d = p.disk;
  if (d.folder.empty()) return table.text();
  row("disk", "write and sync", d.write);
  row("disk", "read, cold", d.read_cold);
  row("disk", "read, direct", d.read_direct);
  row("disk", "read, warm", d.read_warm);
  std::string text =
      table.text() + fmt::format("  a file of {} on {} in {}\n", format_bytes(d.bytes), d.file_system, d.folder);
  for (const auto& note : {d.note, d.direct_note})
    if (!note.empty()) text += fmt::format("  {}\n", note);
  return text;
}

std::string gpu(const Probe& p, const Gpu& g) {
  const auto table_of = [](const std::string& title) { return TextTable(title, {"median", "min", "max"}); };
  const auto row = [](TextTable& t, const std::string& label, const std::string& what, const Figure& f, double unit) {
    if (f.measured())
      t.row(label, what, {three_digits(f.median / unit), three_digits(f.min / unit), three_digits(f.max / unit)},
            f.spread());
  };
  std::string text = fmt::format(
      "\nGPU {}: {}, {} multiprocessors at {:.2f} GHz, {}, L2 {}{}, compute capability {}, driver {}, {}\n", g.index,
      g.name, g.multiprocessors, g.clock_hz / 1e9, format_bytes(g.memory_bytes), format_bytes(g.l2_bytes),
      g.stairs.empty() ? "" : fmt::format(" ({} of it kept)", format_bytes(kept_by_l2(g))), g.compute_capability,
      g.driver, g.uuid);
  TextTable bandwidth = table_of("bandwidth, GB/s"), peaks = table_of("peak, TFLOP/s (i8: TOP/s)"),
            times = table_of("overheads, us");
  for (const auto& b : g.bandwidth) row(bandwidth, b.level, b.way, b.rate, 1e9);
  row(bandwidth, "pinned host", "to the device", g.host_to_device, 1e9),
      row(bandwidth, "pinned host", "from the device", g.device_to_host, 1e9);
  for (const auto& l : p.gpu_links)
    if (l.from == g.index) row(bandwidth, l.kind, fmt::format("to GPU {}", l.to), l.rate, 1e9);
  for (const auto& x : g.peaks) row(peaks, x.isa, x.dtype, x.rate, 1e12);
  row(times, "launch", "one of many", g.launch, 1e-6), row(times, "launch", "and wait for it", g.round_trip, 1e-6),
      row(times, "replay", "node of a graph", g.replay_node, 1e-6);
  for (const auto& l : p.gpu_links)
    if (l.from == g.index) row(times, "16 bytes", fmt::format("to GPU {}", l.to), l.seconds, 1e-6);
  for (const TextTable* t : {&bandwidth, &peaks, &times}) text += t->text();
  return text;
}

std::string gpus(const Probe& p) {
  if (p.gpus.empty()) return fmt::format("\n{}\n", p.gpu_note);
  std::string text;
  for (const auto& g : p.gpus) text += gpu(p, g);
  return text;
}

}  // namespace

std::string to_text(const Probe& p) {
  return head(p) + (p.bandwidth.empty() ? "" : bandwidth(p) + peaks(p) + overheads(p) + rates(p)) + gpus(p);
}

}  // namespace hpcdl::lab

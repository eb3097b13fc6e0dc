// A profile as text for a terminal and as a page.

#include <fmt/format.h>

#include <algorithm>

#include "hpcdl/core/units.h"
#include "tools/page/page.h"
#include "tools/profile/advice.h"
#include "tools/profile/pass.h"
#include "tools/profile/report.h"
#include "tools/words.h"

namespace hpcdl::lab {

namespace {

std::string ms(double seconds) { return fmt::format("{:.3f}", 1e3 * seconds); }
std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }
std::string bytes(std::int64_t n) { return format_bytes(static_cast<double>(n)); }

std::string budget(const Report& r) {
  Table t{{}, {}, "lrrl"};
  t.columns.resize(4);
  const auto line = [&](const char* what, double seconds, const std::string& note = "") {
    t.rows.push_back({what, ms(seconds) + " ms", percent(seconds / r.step_seconds), note});
  };
  line("waiting for data", r.data);
  line("forward", r.phases[0]);
  if (r.phases[1] > 0) line("recompute", r.phases[1]);
  line("backward", r.phases[2]);
  if (r.exchange > 0)
    line("  exchange", r.exchange,
         fmt::format("of gradients with {} ranks: {} of it hidden behind records", r.world,
                     percent(1 - r.exchange_waited / r.exchange)));
  line("optimizer", r.phases[3]);
  line("idle in between", r.gap_seconds(), r.gaps.empty() ? "" : "most before " + r.gaps[0].before);
  if (r.launch_gaps >= 0) line("  launch gaps", r.launch_gaps, "of it between kernels of one program");
  line("between steps", r.between_steps, "logging, evaluation and checkpoints come on top");
  return fmt::format("one step takes {} ms (mean of {} recorded), at the speed of light {} ms: {} of it",
                     ms(r.step_seconds), r.steps, ms(r.light), percent(r.of_roof())) +
         table_text(t);
}

/// Amdahl: what the whole step would gain.
std::string gain(double step, double less) {
  return fmt::format("{} {:.2f}x", ms(step - less), step / std::max(step - less, 1e-12));
}

/// On a page the pale bar is the time, the full one what it would be at the roof.
Table ranked(const Report& r, const TextOptions& o) {
  const auto& rows = o.by_record ? r.records_by_time : r.rows;
  Table t{{"", "record", "calls", "ms", "share", "bound", "of roof", "threads", "balance", "step at its roof",
           "step if free"},
          {},
          "rlrrrlrrrrr"};
  t.meters_before = 5, t.meters_name = "time (full colour: at its roof)";
  double rest = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& row = rows[i];
    if (o.rows && i >= o.rows) {
      rest += row.seconds;
      continue;
    }
    t.rows.push_back({std::to_string(i + 1), row.label(), fmt::format("{:.4g}", row.calls), ms(row.seconds),
                      percent(row.seconds / r.step_seconds), std::string(bound_name(row.bound)), row.roof_text(),
                      row.busy >= 0 ? percent(row.busy) : "-", row.balance >= 0 ? percent(row.balance) : "-",
                      gain(r.step_seconds, row.lost()), gain(r.step_seconds, row.seconds)});
    constexpr int kColours[] = {0, 3, 1, 2};  // of the phases, as in the timeline
    t.meters.push_back({row.seconds / rows[0].seconds, std::min(row.light, row.seconds) / rows[0].seconds,
                        kColours[static_cast<int>(row.phase)]});
  }
  if (const auto shown = t.rows.size(); shown < rows.size())
    t.rows.push_back(
        {"", fmt::format("and {} more", rows.size() - shown), "", ms(rest), percent(rest / r.step_seconds)});
  return t;
}

/// Gaps, threads, memory, what looking cost, and what the numbers do not say.
std::string remarks(const Report& r) {
  std::string out;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, r.gaps.size()); ++i)
    out += fmt::format("{}{} ms before {} (longest {})", i ? ", " : "\nidle: ", ms(r.gaps[i].seconds), r.gaps[i].before,
                       ms(r.gaps[i].longest));
  if (!out.empty()) out += '\n';
  if (r.busy >= 0) {
    out += fmt::format("threads: {} of their time within records is work;", percent(r.busy));
    for (std::size_t t = 0; t < r.thread_busy.size() && t < 16; ++t)
      out += fmt::format(" {}: {} ms", t, ms(r.thread_busy[t]));
    out += r.thread_busy.size() > 16 ? " ...\n" : "\n";
  }
  out += fmt::format(
      "memory: {} of activations planned, {} in use at the peak ({}); {} of parameters, gradients and optimizer "
      "state\n",
      bytes(r.memory.arena), bytes(r.memory.live), r.memory.label, bytes(r.memory.external));
  if (!r.how.empty())
    out +=
        fmt::format("gpu: {}{}\n",
                    r.kernels > 0 ? fmt::format("{:.0f} kernels, copies and fills per step; ", r.kernels) : "", r.how);
  if (const auto& o = r.overhead; o.pairs > 0)
    out += fmt::format(
        "overhead of recording: {:+.2f} % (median of {} of neighbouring steps, recorded against plain; quartiles "
        "{:+.2f} .. {:+.2f} %)\n",
        100 * o.median, plural(o.pairs, "pair"), 100 * o.low, 100 * o.high);
  const auto count = [&](auto&& is) { return std::count_if(r.rows.begin(), r.rows.end(), is); };
  if (const auto n = count([](const Row& row) { return !row.network_known; }); n > 0)
    out += fmt::format(
        "note: the network between the ranks of {} was not measured on this machine, and the speed of light lacks "
        "it: run hpcdl bench comm on as many ranks\n",
        plural(n, "row"));
  // Cached operands are charged at the speed of the cache only where the whole record fits.
  if (const auto n = count([](const Row& row) { return row.network_known && row.of_roof() > 1.05; }); n > 0)
    out += fmt::format(
        "note: {} took less time than the roof allows: an earlier record left the operands in the cache, or the "
        "roofs were measured on a busy machine\n",
        plural(n, "row"));
  constexpr double kOften = 5;  // a quiet machine takes the CPU away less than once per 10 ms and thread
  if (r.interruptions > std::max(kOften, 100 * r.step_seconds * r.threads))
    out += fmt::format(
        "note: other programs took the CPU {:.0f} times per step: every time above is longer than on a quiet machine\n",
        r.interruptions);
  return out;
}

BarChart one_step(const Report& r) {
  return {.parts = {"forward", "backward", "optimizer", "recompute", "data wait", "idle"},
          .bars = {{"one step",
                    {r.phases[0], r.phases[2], r.phases[3], r.phases[1], r.data, r.gap_seconds()},
                    ms(r.step_seconds) + " ms"}}};
}

Table lost(const Report& r) {
  Table t{{"record", "ms above its roof", "share", "what to try"}, {}, "lrrl"};
  for (const auto& a : advice(r.rows, r.roofs))
    t.rows.push_back({a.label, ms(a.lost), percent(a.lost / r.step_seconds), a.text});
  return t;
}

}  // namespace

std::string ranked_text(const Report& r, std::size_t count) { return table_text(ranked(r, {.rows = count})); }

std::string report_text(const Report& r, const TextOptions& options) {
  auto out = budget(r) + "\n" + table_text(ranked(r, options)) + remarks(r);
  if (options.advice) out += '\n', out += advice_text(advice(r.rows, r.roofs), r.step_seconds);
  return out;
}

std::string report_html(const Report& r, const Profile& profile, const std::string& title) {
  Page page{.title = title,
            .subtitle = fmt::format("{} on {}; recording costs {:+.2f} % (median of {} of recorded and plain steps)",
                                    plural(r.steps, "recorded step"), plural(r.threads, "thread"),
                                    100 * r.overhead.median, plural(r.overhead.pairs, "pair")),
            .tiles = {{"per step, on average", ms(r.step_seconds) + " ms"},
                      {"of the speed of light", percent(r.of_roof())},
                      {"of the step waited for data", percent(r.data / r.step_seconds)},
                      {"of the threads' time was work", r.busy < 0 ? "-" : percent(r.busy)}},
            .cards = {},
            .footer = "Made by hpcdl profile. Roofs are measured on this machine."};
  page.broad = true;
  page.cards.push_back({"One step", one_step(r)});
  page.cards.push_back({"The step of median length, over time", Picture{timeline_svg(profile, r.roofs)},
                        fmt::format("Each record is filled up to its share of the roof. Memory peaks at {}: {} of "
                                    "activations, and {} of parameters, gradients and optimizer state.",
                                    r.memory.label, bytes(r.memory.live), bytes(r.memory.external))});
  page.cards.push_back({"Records by time, all layers together", ranked(r, {.rows = 30})});
  if (auto t = lost(r); !t.rows.empty()) page.cards.push_back({"Where most time is lost", std::move(t)});
  return page_html(page);
}

}  // namespace hpcdl::lab

#include "hpcdl/lab/profile/text.h"

#include <fmt/format.h>

#include <algorithm>

#include "hpcdl/core/units.h"
#include "hpcdl/lab/profile/advice.h"

namespace hpcdl::lab {

namespace {

std::string ms(double seconds) { return fmt::format("{:.3f}", 1e3 * seconds); }
std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }
std::string bytes(std::int64_t n) { return format_bytes(static_cast<double>(n)); }

std::string share_line(const char* what, double seconds, double step, const std::string& note = "") {
  return fmt::format("  {:<18} {:>10} ms {:>8}{}{}\n", what, ms(seconds), percent(seconds / step),
                     note.empty() ? "" : "  ", note);
}

std::string budget(const Report& r) {
  std::string out = fmt::format("one step takes {} ms (mean of {} recorded), at the speed of light {} ms: {} of it\n",
                                ms(r.step_seconds), r.steps, ms(r.light), percent(r.of_roof()));
  out += share_line("waiting for data", r.data, r.step_seconds);
  out += share_line("forward", r.phases[0], r.step_seconds);
  if (r.phases[1] > 0) out += share_line("recompute", r.phases[1], r.step_seconds);
  out += share_line("backward", r.phases[2], r.step_seconds);
  if (r.exchange > 0)
    out += share_line("  exchange", r.exchange, r.step_seconds,
                      fmt::format("of gradients with {} ranks: {} of it hidden behind records", r.world,
                                  percent(1 - r.exchange_waited / r.exchange)));
  out += share_line("optimizer", r.phases[3], r.step_seconds);
  out += share_line("idle in between", r.gap_seconds(), r.step_seconds,
                    r.gaps.empty() ? "" : fmt::format("most before {}", r.gaps[0].before));
  if (r.launch_gaps >= 0)
    out += share_line("  launch gaps", r.launch_gaps, r.step_seconds, "of it between kernels of one program");
  out += fmt::format("  {:<18} {:>10} ms {:>8}  logging, evaluation and checkpoints come on top\n", "between steps",
                     ms(r.between_steps), percent(r.between_steps / r.step_seconds));
  return out;
}

/// Amdahl: what the whole step would gain.
std::string gain(double step, double less) {
  return fmt::format("{} {:.2f}x", ms(step - less), step / std::max(step - less, 1e-12));
}

std::string table(const Report& r, const TextOptions& o) {
  const auto& rows = o.by_record ? r.records_by_time : r.rows;
  const auto count = o.rows ? std::min(o.rows, rows.size()) : rows.size();
  std::size_t width = 6;
  for (std::size_t i = 0; i < count; ++i) width = std::max(width, rows[i].label().size());
  std::string out =
      fmt::format("\n{:>3}  {:<{}} {:>6} {:>10} {:>7}  {:<8} {:>8} {:>8} {:>9}  {:>16}  {:>16}\n", "", "record", width,
                  "calls", "ms", "share", "bound", "of roof", "threads", "balance", "step at its roof", "step if free");
  double rest = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& row = rows[i];
    if (i >= count) {
      rest += row.seconds;
      continue;
    }
    out += fmt::format("{:>3}  {:<{}} {:>6.4g} {:>10} {:>7}  {:<8} {:>8} {:>8} {:>9}  {:>16}  {:>16}\n", i + 1,
                       row.label(), width, row.calls, ms(row.seconds), percent(row.seconds / r.step_seconds),
                       bound_name(row.bound), row.roof_text(), row.busy >= 0 ? percent(row.busy) : "-",
                       row.balance >= 0 ? percent(row.balance) : "-", gain(r.step_seconds, row.lost()),
                       gain(r.step_seconds, row.seconds));
  }
  if (count < rows.size())
    out += fmt::format("{:>3}  {:<{}} {:>6} {:>10} {:>7}\n", "", fmt::format("and {} more", rows.size() - count), width,
                       "", ms(rest), percent(rest / r.step_seconds));
  return out;
}

std::string gaps_text(const Report& r) {
  std::string out;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, r.gaps.size()); ++i)
    out += fmt::format("{}{} ms before {} (longest {})", i ? ", " : "\nidle: ", ms(r.gaps[i].seconds), r.gaps[i].before,
                       ms(r.gaps[i].longest));
  if (!out.empty()) out += '\n';
  return out;
}

std::string threads_text(const Report& r) {
  if (r.busy < 0) return "";
  std::string out = fmt::format("threads: {} of their time within records is work;", percent(r.busy));
  for (std::size_t t = 0; t < r.thread_busy.size() && t < 16; ++t)
    out += fmt::format(" {}: {} ms", t, ms(r.thread_busy[t]));
  return out + (r.thread_busy.size() > 16 ? " ...\n" : "\n");
}

/// Cached operands are charged at the speed of the cache only if the whole record fits.
std::string beyond_light(const Report& r) {
  const auto n = std::count_if(r.rows.begin(), r.rows.end(),
                               [](const Row& row) { return row.network_known && row.of_roof() > 1.05; });
  if (n == 0) return "";
  return fmt::format(
      "note: {} row{} took less time than the roof allows: an earlier record left the operands in the cache, or the "
      "roofs were measured on a busy machine\n",
      n, n == 1 ? "" : "s");
}

std::string network_text(const Report& r) {
  const auto n = std::count_if(r.rows.begin(), r.rows.end(), [](const Row& row) { return !row.network_known; });
  if (n == 0) return "";
  return fmt::format(
      "note: the network between the ranks of {} row{} was not measured on this machine, and the speed of light lacks "
      "it: run hpcdl bench comm on as many ranks\n",
      n, n == 1 ? "" : "s");
}

std::string overhead_text(const Report& r) {
  const auto& o = r.overhead;
  if (o.pairs == 0) return "";
  return fmt::format(
      "overhead of recording: {:+.2f} % (median of {} pair{} of neighbouring steps, recorded against plain; quartiles "
      "{:+.2f} .. {:+.2f} %)\n",
      100 * o.median, o.pairs, o.pairs == 1 ? "" : "s", 100 * o.low, 100 * o.high);
}

}  // namespace

std::string report_text(const Report& r, const TextOptions& options) {
  std::string out = budget(r) + table(r, options) + gaps_text(r) + threads_text(r);
  out += fmt::format(
      "memory: {} of activations planned, {} in use at the peak ({}); {} of parameters, gradients and optimizer "
      "state\n",
      bytes(r.memory.arena), bytes(r.memory.live), r.memory.label, bytes(r.memory.external));
  if (!r.how.empty())
    out +=
        fmt::format("gpu: {}{}\n",
                    r.kernels > 0 ? fmt::format("{:.0f} kernels, copies and fills per step; ", r.kernels) : "", r.how);
  out += overhead_text(r) + network_text(r) + beyond_light(r);
  constexpr double kOften = 5;  // a quiet machine takes the CPU away less than once per 10 ms and thread
  if (r.interruptions > std::max(kOften, 100 * r.step_seconds * r.threads))
    out += fmt::format(
        "note: other programs took the CPU {:.0f} times per step: every time above is longer than on a quiet machine\n",
        r.interruptions);
  if (options.advice) out += '\n', out += advice_text(advice(r.rows, r.roofs), r.step_seconds);
  return out;
}

}  // namespace hpcdl::lab

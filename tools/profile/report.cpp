#include "tools/profile/report.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <tuple>

#include "tools/profile/advice.h"

namespace hpcdl::lab {

namespace {

using Json = nlohmann::ordered_json;

double seconds(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }
double seconds(const StepTrace& s) { return seconds(s.end - s.begin); }

double mean_seconds(const std::vector<StepTrace>& steps, bool recorded) {
  double sum = 0;
  int n = 0;
  for (const auto& s : steps)
    if (s.recorded == recorded) sum += seconds(s), ++n;
  return n ? sum / n : 0;
}

/// Linear between neighbours, as in most tools.
double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto i = static_cast<std::size_t>(at);
  const double rest = at - static_cast<double>(i);
  return i + 1 < sorted.size() ? sorted[i] * (1 - rest) + sorted[i + 1] * rest : sorted[i];
}

struct Interval {
  std::int64_t begin, end;
  std::string name;
};

/// The activities of a step in order: waits for data and records.
std::vector<Interval> intervals(const Profile& profile, const StepTrace& step) {
  std::vector<Interval> list;
  for (const auto& s : step.stages)
    if (s.stage == train::Stage::data) list.push_back({s.begin, s.end, std::string(stage_name(s.stage))});
  for (const auto& run : step.runs) {
    const auto& program = profile.programs[static_cast<std::size_t>(run.program)].program;
    for (std::size_t i = 0; i < run.times.size(); ++i)
      list.push_back({run.times[i].begin, run.times[i].end, record_label(program, program.records[i])});
  }
  std::stable_sort(list.begin(), list.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  return list;
}

void count_threads(Report& r, const Profile& profile, const Totals& totals) {
  for (std::size_t p = 0; p < profile.programs.size(); ++p)
    for (std::size_t i = 0; i < profile.programs[p].program.records.size(); ++i) {
      const auto busy = totals.record(p, i).busy;
      r.thread_busy.resize(std::max(r.thread_busy.size(), busy.size()));
      for (std::size_t t = 0; t < busy.size(); ++t) r.thread_busy[t] += busy[t];
    }
  if (r.thread_busy.size() < 2 || r.records <= 0) return;
  const double all = std::accumulate(r.thread_busy.begin(), r.thread_busy.end(), 0.0);
  r.busy = std::min(1.0, all / (r.records * static_cast<double>(r.thread_busy.size())));
}

}  // namespace

double Report::gap_seconds() const {
  return std::accumulate(gaps.begin(), gaps.end(), 0.0, [](double sum, const Gap& g) { return sum + g.seconds; });
}

Overhead overhead(const std::vector<StepTrace>& steps) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i + 1 < steps.size();) {
    const auto &a = steps[i], &b = steps[i + 1];
    if (a.recorded == b.recorded) {
      ++i;
      continue;
    }
    ratios.push_back(a.recorded ? seconds(a) / seconds(b) : seconds(b) / seconds(a));
    i += 2;
  }
  if (ratios.empty()) return {};
  std::sort(ratios.begin(), ratios.end());
  return {static_cast<int>(ratios.size()), quantile(ratios, 0.5) - 1, quantile(ratios, 0.25) - 1,
          quantile(ratios, 0.75) - 1};
}

std::vector<Gap> gaps(const Profile& profile) {
  std::map<std::string, Gap> by_name;
  std::int64_t steps = 0;
  for (const auto& step : profile.steps) {
    if (!step.recorded) continue;
    ++steps;
    auto at = step.begin;
    const auto idle = [&](std::int64_t until, const std::string& before) {
      if (until <= at) return;
      auto& gap = by_name[before];
      gap.before = before;
      gap.seconds += seconds(until - at);
      gap.longest = std::max(gap.longest, seconds(until - at));
    };
    for (const auto& i : intervals(profile, step)) {
      idle(i.begin, i.name);
      at = std::max(at, i.end);
    }
    idle(step.end, "end of step");
  }
  std::vector<Gap> list;
  for (auto& [name, gap] : by_name) {
    gap.seconds /= static_cast<double>(steps);
    list.push_back(gap);
  }
  std::stable_sort(list.begin(), list.end(), [](const Gap& a, const Gap& b) { return a.seconds > b.seconds; });
  return list;
}

double launch_gaps(const Profile& profile) {
  std::int64_t idle = 0, steps = 0;
  for (const auto& step : profile.steps) {
    if (!step.recorded) continue;
    ++steps;
    std::vector<std::vector<RecordTime>> spans(step.runs.size());
    for (const auto& d : step.device)
      if (d.run >= 0) spans[static_cast<std::size_t>(d.run)].push_back({d.begin, d.end});
    for (std::size_t r = 0; r < spans.size(); ++r) {
      auto& list = spans[r];
      if (step.device.empty()) list = step.runs[r].times;
      std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
      for (std::int64_t end = list.empty() ? 0 : list[0].end; const auto& t : list) {
        idle += std::max<std::int64_t>(0, t.begin - end);
        end = std::max(end, t.end);
      }
    }
  }
  return steps ? seconds(idle) / static_cast<double>(steps) : 0;
}

std::pair<double, double> exchange(const Profile& profile) {
  std::int64_t all = 0, waited = 0, steps = 0;
  for (const auto& step : profile.steps) {
    if (!step.recorded) continue;
    ++steps;
    for (const auto& run : step.runs) {
      for (const auto& e : run.exchanges) all += e.end - e.begin;
      const auto& records = profile.programs[static_cast<std::size_t>(run.program)].program.records;
      for (std::size_t i = 0; i < run.times.size(); ++i)
        if (is_collective(records[i].op))
          for (const auto& e : run.exchanges)
            waited +=
                std::max<std::int64_t>(0, std::min(e.end, run.times[i].end) - std::max(e.begin, run.times[i].begin));
    }
  }
  const double n = static_cast<double>(std::max<std::int64_t>(steps, 1));
  return {seconds(all) / n, seconds(waited) / n};
}

MemoryPeak memory_peak(const Profile& profile) {
  MemoryPeak out;
  std::set<std::string> seen;
  for (std::size_t p = 0; p < profile.programs.size(); ++p) {
    const auto& facts = profile.programs[p];
    out.arena = std::max(out.arena, facts.plan.arena_bytes);
    for (const auto& slot : facts.program.slots)
      if (slot.kind == SlotKind::state && seen.insert(slot.name).second) out.external += slot.spec.bytes();
    if (facts.plan.live_bytes <= out.live) continue;
    out.live = facts.plan.live_bytes;
    out.program = static_cast<int>(p), out.record = facts.plan.worst_record;
    out.label = record_label(facts.program, facts.program.records[static_cast<std::size_t>(out.record)]);
  }
  return out;
}

Report report(const Profile& profile, const Roofs& roofs) {
  Totals totals;
  for (const auto& s : profile.steps) totals.add(s);
  Report r;
  r.steps = totals.steps();
  r.threads = profile.threads, r.rank = profile.rank, r.world = profile.world;
  r.step_seconds = totals.step_seconds();
  r.plain_seconds = mean_seconds(profile.steps, false);
  r.data = totals.stage_seconds(train::Stage::data);
  r.records = totals.record_seconds();
  r.overhead = overhead(profile.steps);
  for (const auto& s : profile.steps)
    r.interruptions += static_cast<double>(s.interruptions) / static_cast<double>(profile.steps.size());
  r.rows = rows(profile.programs, totals, roofs);
  r.records_by_time = rows(profile.programs, totals, roofs, false);
  r.light = light_seconds(r.rows);
  for (const auto& row : r.rows) r.phases[static_cast<int>(row.phase)] += row.seconds;
  for (std::size_t i = 0; i + 1 < profile.steps.size(); ++i)
    if (profile.steps[i + 1].step == profile.steps[i].step + 1)
      r.between_steps += seconds(profile.steps[i + 1].begin - profile.steps[i].end);
  if (profile.steps.size() > 1) r.between_steps /= static_cast<double>(profile.steps.size() - 1);
  r.roofs = roofs;
  r.gaps = gaps(profile);
  r.how = profile.how;
  if (!r.how.empty()) r.launch_gaps = launch_gaps(profile);
  for (const auto& s : profile.steps)
    r.kernels += static_cast<double>(s.device.size()) / static_cast<double>(std::max<std::int64_t>(r.steps, 1));
  std::tie(r.exchange, r.exchange_waited) = exchange(profile);
  r.memory = memory_peak(profile);
  count_threads(r, profile, totals);
  return r;
}

namespace {

nlohmann::ordered_json row_json(const Report& r, const Row& row) {
  nlohmann::ordered_json j = {{"name", row.name},
                              {"scope", row.scope},
                              {"phase", phase_name(row.phase)},
                              {"calls", row.calls},
                              {"ms", 1e3 * row.seconds},
                              {"share", row.seconds / r.step_seconds},
                              {"flops", row.flops},
                              {"bytes", row.bytes},
                              {"bound", bound_name(row.bound)},
                              {"of_roof", row.network_known ? nlohmann::ordered_json(row.of_roof()) : nullptr},
                              {"lost_ms", 1e3 * row.lost()},
                              {"step_ms_at_roof", 1e3 * (r.step_seconds - row.lost())},
                              {"step_ms_if_free", 1e3 * (r.step_seconds - row.seconds)}};
  if (row.busy >= 0) j["threads_busy"] = row.busy;
  if (row.balance >= 0) j["threads_balance"] = row.balance;
  return j;
}

}  // namespace

nlohmann::ordered_json report_json(const Report& r) {
  Json j = {{"rank", r.rank},
            {"world_size", r.world},
            {"steps", r.steps},
            {"threads", r.threads},
            {"step_ms", 1e3 * r.step_seconds},
            {"plain_step_ms", r.plain_seconds > 0 ? Json(1e3 * r.plain_seconds) : Json()},
            {"light_ms", 1e3 * r.light},
            {"of_light", r.of_roof()}};
  j["overhead"] = {
      {"pairs", r.overhead.pairs}, {"median", r.overhead.median}, {"low", r.overhead.low}, {"high", r.overhead.high}};
  j["ms"] = {{"data_wait", 1e3 * r.data},
             {"forward", 1e3 * r.phases[0]},
             {"recompute", 1e3 * r.phases[1]},
             {"backward", 1e3 * r.phases[2]},
             {"optimizer", 1e3 * r.phases[3]},
             {"idle", 1e3 * r.gap_seconds()},
             {"between_steps", 1e3 * r.between_steps}};
  if (r.launch_gaps >= 0)
    j["gpu"] = {{"timed_by", r.how},
                {"launch_gaps_ms", 1e3 * r.launch_gaps},
                {"launch_gaps_share", r.launch_gaps / r.step_seconds},
                {"kernels", r.kernels}};
  if (r.exchange > 0)
    j["exchange"] = {{"ms", 1e3 * r.exchange},
                     {"waited_ms", 1e3 * r.exchange_waited},
                     {"hidden", 1 - r.exchange_waited / r.exchange}};
  if (r.busy >= 0) j["threads_busy"] = r.busy;
  j["interruptions"] = r.interruptions;
  j["thread_busy_ms"] = Json::array();
  for (const double t : r.thread_busy) j["thread_busy_ms"].push_back(1e3 * t);
  j["memory"] = {{"arena_bytes", r.memory.arena},
                 {"live_bytes", r.memory.live},
                 {"external_bytes", r.memory.external},
                 {"peak_record", r.memory.label}};
  for (const auto& row : r.rows) j["rows"].push_back(row_json(r, row));
  for (const auto& row : r.records_by_time) {
    j["records"].push_back(row_json(r, row));
    j["records"].back()["record"] = row.record, j["records"].back()["program"] = row.program;
  }
  j["gaps"] = Json::array();
  for (const auto& g : r.gaps)
    j["gaps"].push_back({{"before", g.before}, {"ms", 1e3 * g.seconds}, {"longest_ms", 1e3 * g.longest}});
  j["advice"] = advice_json(advice(r.rows, r.roofs));
  return j;
}

}  // namespace hpcdl::lab

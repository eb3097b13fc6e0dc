#include "tools/profile/totals.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "hpcdl/machine/speed_of_light.h"

namespace hpcdl::lab {

namespace {

double in_seconds(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }

}  // namespace

void Totals::add(const StepTrace& step) {
  if (!step.recorded) return;
  ++steps_;
  seconds_ += in_seconds(step.end - step.begin);
  for (const auto& s : step.stages) stages_[static_cast<std::size_t>(s.stage)] += in_seconds(s.end - s.begin);
  for (const auto& run : step.runs) {
    const auto p = static_cast<std::size_t>(run.program);
    if (programs_.size() <= p) programs_.resize(p + 1);
    auto& of = programs_[p];
    of.runs += 1;
    of.seconds.resize(run.times.size());
    of.busy.resize(run.busy.size());
    of.threads = run.times.empty() ? 0 : run.busy.size() / run.times.size();
    for (std::size_t i = 0; i < run.times.size(); ++i) {
      const double t = in_seconds(run.times[i].end - run.times[i].begin);
      of.seconds[i] += t;
      records_ += t;
    }
    for (std::size_t i = 0; i < run.busy.size(); ++i) of.busy[i] += in_seconds(run.busy[i]);
  }
}

RecordTotal Totals::record(std::size_t program, std::size_t record) const {
  RecordTotal out;
  if (program >= programs_.size() || record >= programs_[program].seconds.size()) return out;
  const auto& of = programs_[program];
  out.seconds = mean(of.seconds[record]);
  for (std::size_t t = 0; t < of.threads; ++t) out.busy.push_back(mean(of.busy[record * of.threads + t]));
  return out;
}

std::string_view bound_name(Bound bound) {
  constexpr std::string_view names[] = {"-", "compute", "memory", "network", "launch"};
  return names[static_cast<int>(bound)];
}

Light light_of(const ProgramFacts& facts, const Record& record, const Roofs& roofs) {
  const bool left_to_others = record.lane != Lane::compute && function_of(record.op, record.backward).start;
  if (!facts.on_gpu && left_to_others) return {};  // its time is the time that the pass waited
  const auto l = light(facts.program, record, roofs);
  const Bound bound = !l.network_known || l.bound == "network" ? Bound::network
                      : l.seconds <= 0                         ? Bound::none
                      : l.by_arithmetic()                      ? Bound::compute
                      : l.bound == "launch"                    ? Bound::launch
                                                               : Bound::memory;
  return {l.seconds, bound, l.network_known};
}

std::string Row::roof_text() const {
  if (!network_known) return "network not measured";
  return light > 0 ? fmt::format("{:.1f} %", 100 * of_roof()) : "-";
}

namespace {

/// A row under construction: sums from which shares are computed.
struct Sum {
  Row row;
  double slowest = -1;
  double bound[5] = {};  // seconds at the speed of light, by what bounds them
  std::vector<double> busy;
};

DType operand_type(const Program& program, const Record& record) {
  for (std::uint32_t k = 0; k < record.operand_count; ++k)
    if (const auto& o = program.operands[record.operands + k];
        o.slot >= 0 && (o.spec.dtype == DType::bf16 || o.spec.dtype == DType::f16))
      return o.spec.dtype;
  return DType::f32;
}

void add(Sum& sum, const ProgramFacts& facts, int program, int index, const RecordTotal& total, double runs,
         const Roofs& roofs) {
  const auto& record = facts.program.records[static_cast<std::size_t>(index)];
  const Light light = light_of(facts, record, roofs);
  auto& row = sum.row;
  row.calls += runs;
  row.seconds += total.seconds;
  row.light += runs * light.seconds;
  row.flops += runs * record.cost.operations;
  row.bytes += runs * record.cost.bytes();
  row.network_known &= light.network_known;
  sum.bound[static_cast<int>(light.bound)] += runs * light.seconds;
  sum.busy.resize(std::max(sum.busy.size(), total.busy.size()));
  for (std::size_t t = 0; t < total.busy.size(); ++t) sum.busy[t] += total.busy[t];
  if (total.seconds <= sum.slowest) return;
  sum.slowest = total.seconds;
  row.program = program, row.record = index;
  row.dtype = operand_type(facts.program, record);
}

void finish(Sum& sum) {
  auto& row = sum.row;
  const auto most = std::max_element(std::begin(sum.bound), std::end(sum.bound));
  if (!row.network_known) row.bound = Bound::network;
  else if (*most > 0) row.bound = static_cast<Bound>(most - std::begin(sum.bound));
  if (sum.busy.size() < 2 || row.seconds <= 0) return;
  const double all = std::accumulate(sum.busy.begin(), sum.busy.end(), 0.0);
  const double largest = *std::max_element(sum.busy.begin(), sum.busy.end());
  const auto threads = static_cast<double>(sum.busy.size());
  row.busy = std::min(1.0, all / (threads * row.seconds));
  if (largest > 0) row.balance = all / (threads * largest);
}

}  // namespace

std::vector<Row> rows(const std::deque<ProgramFacts>& programs, const Totals& totals, const Roofs& roofs, bool fold) {
  std::map<std::string, std::size_t> by_key;
  std::vector<Sum> sums;
  for (std::size_t p = 0; p < programs.size(); ++p) {
    const double runs = totals.runs(p);
    if (runs == 0) continue;
    const auto& program = programs[p].program;
    for (std::size_t i = 0; i < program.records.size(); ++i) {
      const auto& record = program.records[i];
      const auto name = record_name(record),
                 scope = fold ? folded_scope(program.scopes[record.scope]) : program.scopes[record.scope];
      const auto key = fold ? name + ' ' + scope : std::to_string(p) + ' ' + std::to_string(i);
      const auto [at, fresh] = by_key.emplace(key, sums.size());
      if (fresh) {
        sums.emplace_back();
        sums.back().row.name = name, sums.back().row.scope = scope, sums.back().row.phase = record.phase;
      }
      add(sums[at->second], programs[p], static_cast<int>(p), static_cast<int>(i), totals.record(p, i), runs, roofs);
    }
  }
  std::vector<Row> out;
  for (auto& sum : sums) finish(sum), out.push_back(std::move(sum.row));
  std::stable_sort(out.begin(), out.end(), [](const Row& a, const Row& b) { return a.seconds > b.seconds; });
  return out;
}

double light_seconds(const std::vector<Row>& rows) {
  return std::accumulate(rows.begin(), rows.end(), 0.0, [](double sum, const Row& r) { return sum + r.light; });
}

}  // namespace hpcdl::lab

#include "tools/pipe/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "hpcdl/core/error.h"
#include "hpcdl/core/units.h"
#include "hpcdl/pipe/check.h"
#include "hpcdl/pipe/costs_file.h"
#include "hpcdl/pipe/lower.h"
#include "hpcdl/pipe/order_file.h"
#include "tools/page/page.h"

namespace hpcdl::lab::pipe {
namespace {

using Json = nlohmann::ordered_json;

/// The stages whose forward is on a rank.
std::vector<int> stages_on(const engine::Schedule& s, std::size_t rank) {
  std::vector<int> list;
  for (int stage = 0; stage < s.stages(); ++stage)
    if (s.forward_rank[static_cast<std::size_t>(stage)] == static_cast<int>(rank)) list.push_back(stage);
  return list;
}

/// Memory for each stage, if the stages of a rank share it alike.
engine::MemoryLimit limit_of(const engine::Schedule& s, std::int64_t memory, const engine::Costs& costs) {
  if (memory == 0) return {};
  std::int64_t share = 0;  // of a vocabulary, on the rank that takes the most for it
  for (const auto& slots : s.shares)
    if (const auto& v = costs.vocabulary)
      share = std::max(share, v->state_bytes + slots.rows * v->rows_bytes + slots.logits * v->head_bytes +
                                  slots.gradients * v->gradient_bytes);
  if (share >= memory)
    fail_usage("pipe", "a rank's share of the vocabulary takes {} of {}: give more --memory, or use more stages",
               format_bytes(static_cast<double>(share)), format_bytes(static_cast<double>(memory)));
  memory -= share;
  const std::int64_t each = (s.stages() + s.ranks() - 1) / s.ranks();
  engine::MemoryLimit limit{.bytes = memory / each};
  for (const auto& slots : s.slots) limit.frames.push_back(slots.frames + slots.loaded);
  return limit;
}

Division divide(const Report& r, engine::Partition partition) {
  Division d{.partition = std::move(partition)};
  d.stages = engine::stages_of(r.costs->layers, d.partition);
  d.simulation = engine::simulate(r.schedule, d.stages, {.link = r.costs->link, .host = r.costs->host},
                                  engine::Wiring::links, r.costs->vocabulary.value_or(engine::VocabularyCost()));
  return d;
}

bool has_rates(const engine::LinkRate& rate) { return rate != engine::LinkRate(); }

void add_notes(Report& r) {
  if (const auto few = engine::few_micros_warning(r.schedule.ranks(), r.schedule.micros); !few.empty())
    r.notes.push_back(few);
  if (!r.costs) {
    r.notes.emplace_back("each rank takes one unit for a forward and for each half of a backward; transfers take none");
    if (r.schedule.divides_vocabulary())
      r.notes.emplace_back(
          "a rank's share of the vocabulary takes a quarter of a unit for logits, and half of one for their gradients");
    return;
  }
  if (r.schedule.ranks() > 1 && !has_rates(r.costs->link))
    r.notes.emplace_back("transfers take no time: no rate between two ranks is known (hpcdl bench comm measures it)");
  if (r.schedule.on_host && !has_rates(r.costs->host))
    r.notes.emplace_back("host memory takes no time: give its rate in --costs (\"host\")");
  const auto halves = [](const auto& list) {
    return std::any_of(list.begin(), list.end(), [](const auto& a) { return a.act == engine::Act::weight_gradient; });
  };
  if (!std::any_of(r.schedule.of_rank.begin(), r.schedule.of_rank.end(), halves)) return;
  for (const auto& stage : r.best.stages)
    if (stage.forward_records > 0 && stage.weight_records == 0)
      r.notes.push_back(
          fmt::format("the weight gradient of {} computes nothing: no record of it is separate", stage.name));
}

std::string bytes_text(std::int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

Json json_of(const engine::Simulation& s) {
  Json ranks = Json::array();
  for (const auto& use : s.ranks)
    ranks.push_back({{"busy", use.busy},
                     {"idle", use.idle},
                     {"frames", use.frames},
                     {"peak_bytes", use.peak_bytes},
                     {"wire_bytes", use.wire_bytes},
                     {"host_bytes", use.host_bytes}});
  return {{"makespan", s.makespan}, {"bubble", s.bubble}, {"ranks", std::move(ranks)}};
}

Json stages_json(const std::vector<engine::PartCost>& stages) {
  return engine::to_json(engine::Costs{.layers = stages})["layers"];
}

Json actions_json(const Report& r) {
  Json ranks = Json::array();
  for (std::size_t rank = 0; rank < r.schedule.of_rank.size(); ++rank) {
    Json list = Json::array();
    for (std::size_t i = 0; i < r.schedule.of_rank[rank].size(); ++i) {
      const auto& a = r.schedule.of_rank[rank][i];
      const auto& span = r.best.simulation.spans[rank][i];
      Json one = {{"act", engine::act_name(a.act)}, {"stage", a.stage}, {"begin", span.begin}, {"end", span.end}};
      if (a.micro >= 0) one["micro"] = a.micro;
      if (a.peer >= 0) one["peer"] = a.peer;
      if (a.slot >= 0) one["slot"] = a.slot;
      list.push_back(std::move(one));
    }
    ranks.push_back(std::move(list));
  }
  return ranks;
}

Table rank_table(const Report& r) {
  const auto& s = r.best.simulation;
  const bool host = std::any_of(s.ranks.begin(), s.ranks.end(), [](const auto& u) { return u.host_bytes > 0; });
  Table t{.columns = {"rank", "stages", "busy", "idle", "frames"}, .rows = {}};
  if (r.costs) t.columns.insert(t.columns.end(), {"peak memory", "sent"});
  if (host) t.columns.emplace_back("to and from host");
  t.align = "rl" + std::string(t.columns.size() - 2, 'r');
  for (std::size_t rank = 0; rank < s.ranks.size(); ++rank) {
    const auto& use = s.ranks[rank];
    auto& row = t.rows.emplace_back();
    row = {std::to_string(rank), fmt::format("{}", fmt::join(stages_on(r.schedule, rank), " ")), time_text(r, use.busy),
           fmt::format("{:.1f} %", 100 * use.idle / s.makespan), std::to_string(use.frames)};
    if (r.costs) row.push_back(bytes_text(use.peak_bytes)), row.push_back(bytes_text(use.wire_bytes));
    if (host) row.push_back(bytes_text(use.host_bytes));
  }
  return t;
}

Table stage_table(const Report& r) {
  Table t{.columns = {"stage", "layers", "F", "I", "W", "records F/I/W", "state", "frame", "to next", "to previous"},
          .rows = {}};
  t.align = "rlrrrrrrrr";
  for (std::size_t i = 0; i < r.best.stages.size(); ++i) {
    const auto& s = r.best.stages[i];
    const bool known = s.forward_records > 0;
    t.rows.push_back({std::to_string(i), s.name, time_text(r, s.forward), time_text(r, s.input_gradient),
                      time_text(r, s.weight_gradient),
                      known ? fmt::format("{}/{}/{}", s.forward_records, s.input_records, s.weight_records) : "-",
                      bytes_text(s.state_bytes), bytes_text(s.frame_bytes), bytes_text(s.activation_bytes),
                      bytes_text(s.gradient_bytes)});
  }
  return t;
}

Table share_table(const Report& r) {
  const auto& v = *r.costs->vocabulary;
  const auto counts = v.logits_records > 0 ? fmt::format("{}/{}/{}/{}", v.lookup_records, v.logits_records,
                                                         v.loss_records, v.gradient_records)
                                           : "-";
  Table t{.columns = {"share of the vocabulary", "E", "V", "T", "D", "records E/V/T/D", "state", "of logits",
                      "sent by the last stage"},
          .rows = {}};
  t.align = "lrrrrrrrr";
  t.rows.push_back({"each rank", time_text(r, v.lookup), time_text(r, v.logits), time_text(r, v.loss),
                    time_text(r, v.lookup_gradient), counts, bytes_text(v.state_bytes), bytes_text(v.head_bytes),
                    bytes_text(v.hidden_bytes)});
  return t;
}

}  // namespace

Report examine(std::string name, const engine::Schedule& orders, const engine::Costs* costs, std::int64_t memory,
               const engine::Partition& cut) {
  Report r{.name = std::move(name), .schedule = orders};
  if (const auto wrong = engine::faults(orders, 1); !wrong.empty()) fail_usage("pipe", "{}: {}", r.name, wrong.front());
  if (memory > 0 && orders.on_host)
    fail_usage("pipe", "--memory cannot limit {}: the state of its stages is in host memory", r.name);
  r.deadlock = engine::deadlock(orders, engine::Wiring::links);
  if (!r.deadlock.empty()) return r;
  r.schedule = engine::lower(orders);
  // A fault of lower() itself must not become a wrong number.
  const auto wrong = engine::faults(r.schedule, 1);
  require(wrong.empty() && engine::deadlock(r.schedule, engine::Wiring::blocking).empty(), "pipe",
          "the transfers that were added are wrong: {}", wrong.empty() ? "a deadlock" : wrong.front());
  if (!costs) {
    r.best.stages = engine::equal_stages(orders.ranks(), std::max(1, orders.stages() / orders.ranks()));
    r.best.stages.resize(static_cast<std::size_t>(orders.stages()), r.best.stages.back());
    r.best.simulation = engine::simulate(r.schedule, r.best.stages);
  } else {
    r.costs = *costs;
    if (orders.divides_vocabulary() != costs->vocabulary.has_value())
      fail_usage(
          "pipe", "the orders {} a vocabulary, but the costs are of ranks that {}",
          orders.divides_vocabulary() ? "divide" : "do not divide",
          costs->vocabulary ? "divide one" : "do not: take them from a run with parallel.vocabulary = \"pipeline\"");
    if (!cut.empty()) engine::require_cut(cut, static_cast<int>(costs->layers.size()), orders.stages());
    r.best = divide(
        r, cut.empty() ? engine::best_partition(costs->layers, orders.stages(), limit_of(r.schedule, memory, *costs))
                       : cut);
    r.even = divide(r, engine::even_partition(static_cast<int>(costs->layers.size()), orders.stages()));
  }
  add_notes(r);
  return r;
}

std::string headline(const Report& r) {
  const auto& s = r.schedule;
  const auto plural = [](int n, const char* what) { return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s"); };
  return fmt::format("{}: {}, {}, {}", r.name, plural(s.ranks(), "rank"), plural(s.stages(), "stage"),
                     s.micros == 1 ? "1 micro-batch" : fmt::format("{} micro-batches", s.micros));
}

std::string time_text(const Report& r, double time) {
  if (!r.costs) return fmt::format("{:.6g} unit{}", time, time == 1 ? "" : "s");
  const auto [unit, name] = time >= 1      ? std::pair(1.0, "s")
                            : time >= 1e-3 ? std::pair(1e-3, "ms")
                                           : std::pair(1e-6, "us");
  return fmt::format("{:.4g} {}", time / unit, name);  // schedules differ by a few percent
}

std::string cell_label(const engine::Schedule& s, std::size_t rank, const engine::Action& a) {
  if (engine::of_vocabulary(a.act)) return fmt::format("{}{}", engine::act_letter(a.act), a.micro);
  const auto own = stages_on(s, rank);
  auto label = fmt::format("{}{}", engine::act_letter(a.act), a.micro);
  const auto& by_rank = a.act == engine::Act::forward ? s.forward_rank : s.backward_rank;
  int before = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(a.stage); ++i) before += by_rank[i] == static_cast<int>(rank);
  if (own.size() > 1 || s.stages() > s.ranks())
    label += before < 26 ? std::string(1, static_cast<char>('a' + before)) : "+";
  return label;
}

Json to_json(const Report& r) {
  Json out = {{"schedule", r.name},
              {"stages", r.schedule.stages()},
              {"micros", r.schedule.micros},
              {"unit", r.costs ? "seconds" : "units"}};
  if (r.schedule.divides_vocabulary()) out["barriers"] = r.schedule.barriers;
  const bool runs = r.deadlock.empty();
  out["makespan"] = nullptr;
  out["bubble"] = nullptr;
  out["ranks"] = Json::array();
  if (runs) out.update(json_of(r.best.simulation));
  out["deadlock"] = runs ? Json(nullptr) : Json(r.deadlock);
  out["notes"] = r.notes;
  out["order"] = Json::array();
  const auto text = engine::order_text(r.schedule);
  for (std::size_t at = 0; at < text.size();) {
    const auto end = text.find('\n', at);
    out["order"].push_back(text.substr(at, end - at));
    at = end + 1;
  }
  if (!runs) return out;
  out["actions"] = actions_json(r);
  out["cost_of_stage"] = stages_json(r.best.stages);
  if (!r.costs) return out;
  out["partition"] = r.best.partition;
  out["even"] = json_of(r.even->simulation);
  out["even"]["partition"] = r.even->partition;
  out["costs"] = engine::to_json(*r.costs);
  return out;
}

std::string to_text(const Report& r) {
  std::string text = headline(r) + "\n";
  if (!r.deadlock.empty()) {
    text += "  deadlock: each of these waits for the next one, and the last one for the first\n";
    for (const auto& line : r.deadlock) text += "    " + line + "\n";
    return text;
  }
  const auto& s = r.best.simulation;
  text += fmt::format("  makespan {}, bubble {:.1f} %\n", time_text(r, s.makespan), 100 * s.bubble);
  if (r.even && r.even->partition != r.best.partition)
    text += fmt::format("  layers by cost: {} (layers dealt evenly, {}: {}, {:.2f} times as long)\n",
                        fmt::join(r.best.partition, " + "), fmt::join(r.even->partition, " + "),
                        time_text(r, r.even->simulation.makespan), r.even->simulation.makespan / s.makespan);
  else if (r.even) text += fmt::format("  layers by cost: {}\n", fmt::join(r.best.partition, " + "));
  text += "\n" + table_text(rank_table(r));
  if (r.costs) text += "\n" + table_text(stage_table(r));
  if (r.costs && r.costs->vocabulary) text += "\n" + table_text(share_table(r));
  return text;
}

}  // namespace hpcdl::lab::pipe

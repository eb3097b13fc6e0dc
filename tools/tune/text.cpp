// Tables of candidates.

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "tools/page/page.h"
#include "tools/tune/session.h"

namespace hpcdl::lab::tune {
namespace {

std::string share_of(const Outcome& o, const Timed& t, const LightOf& light) {
  const double least = light && t.seconds > 0 ? light(o.cost) : 0;
  return least > 0 ? fmt::format("{:.0f} %", 100 * least / t.seconds) : "";
}

std::string rate_of(const Cost& c, double seconds) {
  if (seconds <= 0) return "";
  return c.operations > 200 * c.bytes() ? fmt::format("{:.1f} TFLOP/s", c.operations / seconds * 1e-12)
                                        : fmt::format("{:.0f} GB/s", c.bytes() / seconds * 1e-9);
}

}  // namespace

std::string to_text(const Outcome& o, const LightOf& light) {
  Table table{{"candidate", "time", "rate", "of roof", ""}, {}, "lrrrl"};
  for (const auto& t : o.table) {
    std::vector<std::string> notes;
    if (t.candidate.id == o.chosen) notes.emplace_back("chosen");
    if (t.candidate.id == o.built_in) notes.emplace_back("built in");
    notes.push_back(!t.problem.empty() ? "not used: " + t.problem : t.seconds > 0 ? "verified" : "no time left");
    table.rows.push_back({t.candidate.name, t.seconds > 0 ? fmt::format("{:.2f} us", 1e6 * t.seconds) : "-",
                          rate_of(o.cost, t.seconds), share_of(o, t, light),
                          fmt::format("{}", fmt::join(notes, ", "))});
  }
  auto text = fmt::format("{} {} {}\n", o.key.op, o.dtype, o.shape) + table_text(table);
  if (!o.complete)
    text += "  the time for tuning ended before every candidate was measured: nothing is changed or remembered\n";
  return text;
}

nlohmann::ordered_json to_json(const Outcome& o, const LightOf& light) {
  nlohmann::ordered_json j{{"op", o.key.op},
                           {"dtype", o.dtype},
                           {"shape", o.shape},
                           {"key", o.key.fields},
                           {"flops", o.cost.operations},
                           {"bytes", o.cost.bytes()},
                           {"complete", o.complete},
                           {"candidates", nlohmann::ordered_json::array()}};
  for (const auto& t : o.table) {
    nlohmann::ordered_json c{{"name", t.candidate.name},
                             {"id", t.candidate.id},
                             {"verified", t.problem.empty() && t.seconds > 0},
                             {"chosen", t.candidate.id == o.chosen},
                             {"built_in", t.candidate.id == o.built_in}};
    if (t.seconds > 0) c["seconds"] = t.seconds, c["runs"] = t.runs;
    if (const double least = light && t.seconds > 0 ? light(o.cost) : 0; least > 0)
      c["share_of_roof"] = least / t.seconds;
    if (!t.problem.empty()) c["problem"] = t.problem;
    j["candidates"].push_back(std::move(c));
  }
  return j;
}

}  // namespace hpcdl::lab::tune

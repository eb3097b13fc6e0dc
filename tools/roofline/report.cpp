#include "tools/roofline/report.h"

#include <fmt/chrono.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "hpcdl/machine/remembered.h"
#include "tools/compare/statistics.h"

namespace hpcdl::lab::roofline {

namespace {

using Json = nlohmann::ordered_json;

Json row_json(const Row& r) {
  Json j = {{"source", r.source}, {"op", r.op},     {"shape", r.shape},
            {"dtype", r.dtype},   {"pass", r.pass}, {"device", r.device}};
  if (r.source == "step") j["scope"] = r.scope, j["count"] = r.count;
  j["records"] = r.parts.size();
  j["flops"] = r.cost.operations, j["bytes"] = r.cost.bytes(), j["intensity"] = r.intensity();
  j["bound"] = r.light.bound;
  j["light_seconds"] = r.light.seconds, j["arithmetic_seconds"] = r.light.arithmetic,
  j["traffic_seconds"] = r.light.traffic;
  const auto measured = [&](double x) { return r.measured() ? Json(x) : Json(); };
  j["seconds"] = measured(r.seconds), j["seconds_min"] = measured(r.fastest), j["seconds_max"] = measured(r.slowest),
  j["runs"] = r.runs;
  j["flops_per_second"] = measured(r.cost.operations / r.seconds),
  j["bytes_per_second"] = measured(r.cost.bytes() / r.seconds);
  j["share"] = measured(r.share()), j["above_roof"] = r.fault();
  return j;
}

Json roofs_json(const Roofs& r) {
  Json j = lab::to_json(r);
  j["memory"] = r.memory();
  return j;
}

std::string csv_word(const Json& value) {
  if (value.is_null()) return "";
  if (value.is_boolean()) return value.get<bool>() ? "1" : "0";
  if (!value.is_string()) return value.dump();
  const auto s = value.get<std::string>();
  if (s.find_first_of(",\"\n") == std::string::npos) return s;
  std::string out = "\"";
  for (const char c : s) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + "\"";
}

}  // namespace

std::string today() { return fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr))); }

std::vector<const Row*> Report::all() const {
  std::vector<const Row*> list;
  for (const auto& r : rows) list.push_back(&r);
  for (const auto& r : step) list.push_back(&r);
  return list;
}

int Report::faults() const {
  const auto list = all();
  return static_cast<int>(std::count_if(list.begin(), list.end(), [](const Row* r) { return r->fault(); }));
}

std::string show_seconds(double s) {
  if (s < 999.5e-9) return three_digits(s * 1e9) + " ns";
  if (s < 999.5e-6) return three_digits(s * 1e6) + " us";
  return s < 0.9995 ? three_digits(s * 1e3) + " ms" : three_digits(s) + " s";
}

std::string show_rate(double per_second, const char* unit) {
  const bool tera = per_second >= 1e13;
  return fmt::format("{} {}{}", three_digits(per_second / (tera ? 1e12 : 1e9)), tera ? "T" : "G", unit);
}

std::string show_rate(const Row& row, double seconds) {
  return row.light.by_arithmetic() ? show_rate(row.cost.operations / seconds, "FLOP/s")
                                   : show_rate(row.cost.bytes() / seconds, "B/s");
}

std::string show_intensity(double x) { return x < 0.095 ? fmt::format("{:.3f}", x) : three_digits(x); }

std::string show_share(const Row& row) { return fmt::format("{:.0f} %", 100 * row.share()); }

std::vector<std::string> cells(const Row& r) {
  std::vector<std::string> list{r.scope.empty() ? r.op : r.op + " " + r.scope,
                                r.shape,
                                r.dtype,
                                r.pass,
                                show_intensity(r.intensity()),
                                r.light.bound,
                                show_seconds(r.light.seconds)};
  if (r.measured()) list.insert(list.end(), {show_seconds(r.seconds), show_rate(r, r.seconds), show_share(r)});
  return list;
}

Json to_json(const Report& report) {
  const auto& m = report.machine;
  Json j = {{"machine",
             {{"cpu", m.cpu},
              {"cpus_online", m.cpus_online},
              {"cpus_allowed", m.cpus_allowed},
              {"isa", m.isa},
              {"memory_bytes", m.memory_total},
              {"last_level_cache_bytes", m.last_level_cache}}},
            {"device", report.device},
            {"gpu", report.gpu.empty() ? Json() : Json(report.gpu)},
            {"threads", report.threads},
            {"date", report.date},
            {"seconds", report.seconds},
            {"roofs", roofs_json(report.roofs)},
            {"above_roof", report.faults()},
            {"disturbance", report.disturbance.seconds > 0 ? lab::to_json(report.disturbance) : Json()}};
  if (!report.config.empty()) j["config"] = report.config;
  j["rows"] = Json::array();
  for (const Row* r : report.all()) j["rows"].push_back(row_json(*r));
  return j;
}

std::string to_csv(const Report& report) {
  constexpr const char* kColumns[] = {
      "source", "op",        "shape", "dtype",         "pass",    "scope",       "device",      "count", "flops",
      "bytes",  "intensity", "bound", "light_seconds", "seconds", "seconds_min", "seconds_max", "share", "above_roof"};
  std::string text = fmt::format("{}\n", fmt::join(kColumns, ","));
  for (const Row* r : report.all()) {
    Json j = row_json(*r);
    j["scope"] = r->scope, j["count"] = r->count;
    std::string line;
    for (const char* column : kColumns) line += (line.empty() ? "" : ",") + csv_word(j[column]);
    text += line + "\n";
  }
  return text;
}

}  // namespace hpcdl::lab::roofline

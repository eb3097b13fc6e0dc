#include "hpcdl/lab/roofline/report.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "hpcdl/lab/compare/statistics.h"

namespace hpcdl::lab::roofline {

namespace {

using Json = nlohmann::ordered_json;

/// Three significant digits, without an exponent.
std::string digits(double x) { return fmt::format("{:.{}f}", x, x >= 99.95 ? 0 : x >= 9.995 ? 1 : 2); }

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
  Json j = {{"f32", r.f32},
            {"bf16", r.bf16},
            {"i8", r.i8},
            {"memory", r.memory()},
            {"memory_read", r.memory_read},
            {"memory_copy", r.memory_copy},
            {"memory_write", r.memory_write},
            {"memory_update", r.memory_update}};
  j["caches"] = Json::array();
  for (const auto& c : r.caches)
    j["caches"].push_back(
        {{"name", c.name}, {"bytes", c.bytes}, {"read", c.read}, {"copy", c.copy}, {"update", c.update}});
  return j;
}

std::string csv_word(const std::string& s) {
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
  if (s < 999.5e-9) return digits(s * 1e9) + " ns";
  if (s < 999.5e-6) return digits(s * 1e6) + " us";
  return s < 0.9995 ? digits(s * 1e3) + " ms" : digits(s) + " s";
}

std::string show_rate(double per_second, const char* unit) {
  const bool tera = per_second >= 1e13;
  return fmt::format("{} {}{}", digits(per_second / (tera ? 1e12 : 1e9)), tera ? "T" : "G", unit);
}

std::string show_rate(const Row& row, double seconds) {
  return row.light.by_arithmetic() ? show_rate(row.cost.operations / seconds, "FLOP/s")
                                   : show_rate(row.cost.bytes() / seconds, "B/s");
}

std::string show_intensity(double x) { return x < 0.095 ? fmt::format("{:.3f}", x) : digits(x); }

std::string show_share(const Row& row) { return fmt::format("{:.0f} %", 100 * row.share()); }

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
  std::string text =
      "source,op,shape,dtype,pass,scope,device,count,flops,bytes,intensity,bound,light_seconds,seconds,seconds_min,"
      "seconds_max,share,above_roof\n";
  for (const Row* r : report.all()) {
    const auto number = [&](double x) { return r->measured() ? fmt::format("{}", x) : ""; };
    text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", r->source, r->op, csv_word(r->shape),
                        r->dtype, r->pass, csv_word(r->scope), r->device, r->count, r->cost.operations, r->cost.bytes(),
                        r->intensity(), r->light.bound, r->light.seconds, number(r->seconds), number(r->fastest),
                        number(r->slowest), number(r->share()), r->fault() ? 1 : 0);
  }
  return text;
}

}  // namespace hpcdl::lab::roofline

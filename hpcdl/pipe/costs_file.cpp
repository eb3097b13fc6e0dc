#include "hpcdl/pipe/costs_file.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "hpcdl/core/error.h"
#include "hpcdl/io/json.h"

namespace hpcdl::pipe {
namespace {

constexpr std::size_t kMostLayers = 4096;
constexpr double kMostSeconds = 1e9;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 50;
constexpr const char* kSeconds[] = {"forward", "input_gradient", "weight_gradient"};

// The one list of the fields of a layer that are bytes.
template <class Part, class F> void for_each_bytes(Part& p, F f) {
  f("state_bytes", p.state_bytes);
  f("value_bytes", p.value_bytes);
  f("frame_bytes", p.frame_bytes);
  f("activation_bytes", p.activation_bytes);
  f("gradient_bytes", p.gradient_bytes);
}
template <class Part, class F> void for_each_count(Part& p, F f) {
  f("forward_records", p.forward_records);
  f("input_records", p.input_records);
  f("weight_records", p.weight_records);
}

template <class Share, class F> void for_each_second(Share& v, F f) {
  f("lookup", v.lookup);
  f("logits", v.logits);
  f("loss", v.loss);
  f("lookup_gradient", v.lookup_gradient);
}
template <class Share, class F> void for_each_byte_of_share(Share& v, F f) {
  f("state_bytes", v.state_bytes);
  f("rows_bytes", v.rows_bytes);
  f("head_bytes", v.head_bytes);
  f("gradient_bytes", v.gradient_bytes);
  f("hidden_bytes", v.hidden_bytes);
  f("statistics_bytes", v.statistics_bytes);
}

template <class Share, class F> void for_each_count_of_share(Share& v, F f) {
  f("lookup_records", v.lookup_records);
  f("logits_records", v.logits_records);
  f("loss_records", v.loss_records);
  f("gradient_records", v.gradient_records);
}

void refuse_unknown(const nlohmann::json& object, const nlohmann::ordered_json& known, const std::string& where) {
  for (const auto& [key, value] : object.items())
    require(known.contains(key), "pipe", "{}: unknown key {}", where, io::shown(key));
}

double number(const io::JsonObject& from, const char* key, double least, double most, bool open = false) {
  const double value = from.need<double>(key);
  require(std::isfinite(value) && value <= most && (open ? value > least : value >= least), "pipe",
          "{}: expected \"{}\" {} {} and at most {}, found {}", from.where(), key, open ? "above" : "of at least",
          least, most, value);
  return value;
}

LinkRate rate_from(const nlohmann::json& json, const std::string& where) {
  const io::JsonObject from(json, where);
  refuse_unknown(json, {{"latency", 0}, {"bytes_per_second", 0}}, where);
  return {number(from, "latency", 0, kMostSeconds), number(from, "bytes_per_second", 0, 1e18, true)};
}

nlohmann::ordered_json to_json(const LinkRate& rate) {
  return {{"latency", rate.latency}, {"bytes_per_second", rate.bytes_per_second}};
}

nlohmann::ordered_json to_json(const PartCost& p) {
  nlohmann::ordered_json json = {{"name", p.name}};
  const double seconds[] = {p.forward, p.input_gradient, p.weight_gradient};
  for (std::size_t i = 0; i < std::size(seconds); ++i) json[kSeconds[i]] = seconds[i];
  const auto put = [&](const char* key, auto value) { json[key] = value; };
  for_each_bytes(p, put);
  for_each_count(p, put);
  return json;
}

PartCost part_from(const nlohmann::json& json, const std::string& where, std::size_t index) {
  const io::JsonObject from(json, where);
  refuse_unknown(json, to_json(PartCost()), where);
  PartCost p{.name = from.get_or<std::string>("name", fmt::format("layer {}", index))};
  double* const seconds[] = {&p.forward, &p.input_gradient, &p.weight_gradient};
  for (std::size_t i = 0; i < std::size(seconds); ++i) *seconds[i] = number(from, kSeconds[i], 0, kMostSeconds);
  const auto take = [&](std::int64_t most) {
    return [&from, most](const char* key, auto& value) {
      const auto given = from.get_or<std::int64_t>(key, 0);
      require(given >= 0 && given <= most, "pipe", "{}: expected \"{}\" between 0 and {}, found {}", from.where(), key,
              most, given);
      value = static_cast<std::remove_reference_t<decltype(value)>>(given);
    };
  };
  for_each_bytes(p, take(kMostBytes));
  for_each_count(p, take(1 << 30));
  return p;
}

nlohmann::ordered_json to_json(const VocabularyCost& v) {
  nlohmann::ordered_json json;
  const auto put = [&](const char* key, auto value) { json[key] = value; };
  for_each_second(v, put);
  for_each_byte_of_share(v, put);
  for_each_count_of_share(v, put);
  return json;
}

VocabularyCost vocabulary_from(const nlohmann::json& json, const std::string& where) {
  const io::JsonObject from(json, where);
  refuse_unknown(json, to_json(VocabularyCost()), where);
  VocabularyCost v;
  for_each_second(v, [&](const char* key, double& value) { value = number(from, key, 0, kMostSeconds); });
  const auto take = [&](std::int64_t most) {
    return [&from, &where, most](const char* key, auto& value) {
      const auto given = from.get_or<std::int64_t>(key, 0);
      require(given >= 0 && given <= most, "pipe", "{}: expected \"{}\" between 0 and {}, found {}", where, key, most,
              given);
      value = static_cast<std::remove_reference_t<decltype(value)>>(given);
    };
  };
  for_each_byte_of_share(v, take(kMostBytes));
  for_each_count_of_share(v, take(1 << 30));
  return v;
}

}  // namespace

nlohmann::ordered_json to_json(const Costs& costs) {
  auto layers = nlohmann::ordered_json::array();
  for (const auto& layer : costs.layers) layers.push_back(to_json(layer));
  nlohmann::ordered_json json = {{"layers", std::move(layers)}};
  if (costs.vocabulary) json["vocabulary"] = to_json(*costs.vocabulary);
  if (costs.link != LinkRate()) json["link"] = to_json(costs.link);
  if (costs.host != LinkRate()) json["host"] = to_json(costs.host);
  return json;
}

Costs costs_from(const nlohmann::json& json, const std::string& where) {
  const io::JsonObject outer(json, where);
  if (const auto* inner = outer.find("costs")) return costs_from(*inner, where + ": costs");
  refuse_unknown(json, {{"layers", 0}, {"vocabulary", 0}, {"link", 0}, {"host", 0}}, where);
  Costs costs;
  const auto* layers = outer.find("layers");
  require(layers && layers->is_array() && !layers->empty() && layers->size() <= kMostLayers, "pipe",
          "{}: expected \"layers\", a list of 1 to {} objects", where, kMostLayers);
  for (std::size_t i = 0; i < layers->size(); ++i)
    costs.layers.push_back(part_from((*layers)[i], fmt::format("{}: layer {}", where, i), i));
  require(sum(costs.layers).seconds() > 0, "pipe", "{}: expected a layer that takes time, found none", where);
  if (const auto* share = outer.find("vocabulary")) costs.vocabulary = vocabulary_from(*share, where + ": vocabulary");
  if (const auto* link = outer.find("link")) costs.link = rate_from(*link, where + ": link");
  if (const auto* host = outer.find("host")) costs.host = rate_from(*host, where + ": host");
  return costs;
}

Costs read_costs(const std::filesystem::path& file) { return costs_from(io::read_json(file), file.string()); }

}  // namespace hpcdl::pipe

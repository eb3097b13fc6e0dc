#include "hpcdl/quant/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hpcdl/core/describe.h"
#include "hpcdl/core/units.h"
#include "hpcdl/quant/codecs.h"

namespace hpcdl::quant {

std::int64_t ModelReport::weights() const {
  std::int64_t n = 0;
  for (const auto& l : layers) n += l.quantized ? l.shape.size() : 0;
  return n;
}

std::int64_t ModelReport::parameters() const {
  std::int64_t n = 0;
  for (const auto& l : layers) n += l.shape.size();
  return n;
}

std::int64_t ModelReport::bytes() const {
  std::int64_t n = 0;
  for (const auto& l : layers) n += l.bytes;
  return n;
}

double ModelReport::bits_per_weight() const {
  std::int64_t n = 0;
  for (const auto& l : layers) n += l.quantized ? l.bytes : 0;
  return weights() > 0 ? 8.0 * static_cast<double>(n) / static_cast<double>(weights()) : 32;
}

double ModelReport::model_bits_per_parameter() const {
  return parameters() > 0 ? 8.0 * static_cast<double>(bytes()) / static_cast<double>(parameters()) : 32;
}

nlohmann::json to_json(const ModelReport& report) {
  auto layers = nlohmann::json::array();
  for (const auto& l : report.layers) {
    layers.push_back({{"name", l.name},
                      {"shape", std::vector<std::int64_t>(l.shape.begin(), l.shape.end())},
                      {"quantized", l.quantized},
                      {"compensated", l.compensated},
                      {"bits_per_weight", l.bits_per_weight},
                      {"ratio_fp32", l.ratio_fp32()},
                      {"relative_rms_error", l.relative_rms},
                      {"max_error", l.largest},
                      {"bytes", l.bytes}});
    if (l.codec) layers.back()["format"] = l.codec->name;
    if (l.divergence >= 0) layers.back()["kl"] = l.divergence;
  }
  nlohmann::json json = {
      {"format", report.codec->name},      {"bits_per_weight", report.bits_per_weight()},
      {"ratio_fp32", report.ratio_fp32()}, {"model_bits_per_parameter", report.model_bits_per_parameter()},
      {"weights", report.weights()},       {"parameters", report.parameters()},
      {"bytes", report.bytes()},           {"layers", std::move(layers)}};
  if (report.codec->groups.empty()) {
    json["nested"] = report.options.nested;
  } else {
    json["group"] = report.options.group;
    json["symmetric"] = report.options.symmetric;
  }
  return json;
}

std::string to_text(const ModelReport& report) {
  std::size_t width = 6;
  for (const auto& l : report.layers) width = std::max(width, l.quantized || l.odd ? l.name.size() : 0);
  std::string out = fmt::format("{:<{}}  {:>16}  {:>8}  {:>9}  {:>9}  {:>6}\n", "matrix", width, "shape", "bits",
                                "rms error", "max error", "/ fp32");
  for (const auto& l : report.layers) {
    if (l.odd)
      out += fmt::format("{:<{}}  {:>16}  unchanged: {} does not divide its inputs\n", l.name, width,
                         to_string(l.shape), row_unit(*report.codec, report.options));
    if (!l.quantized) continue;
    out += fmt::format("{:<{}}  {:>16}  {:>8.3f}  {:>8.2f}%  {:>9.2e}  {:>6.2f}\n", l.name, width, to_string(l.shape),
                       l.bits_per_weight, 100 * l.relative_rms, l.largest, l.ratio_fp32());
  }
  out += fmt::format(
      "{} weights in {:.3f} bits each ({:.2f}x smaller than fp32); the model: {} parameters, {}, {:.2f} bits each\n",
      format_count(static_cast<double>(report.weights())), report.bits_per_weight(), report.ratio_fp32(),
      format_count(static_cast<double>(report.parameters())), format_bytes(static_cast<double>(report.bytes())),
      report.model_bits_per_parameter());
  return out;
}

}  // namespace hpcdl::quant

#pragma once
// What an adapter is asked to be: [adapter] of a run, and adapter_config.json of a folder.

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/io/config_visitor.h"

namespace hpcdl::models {

enum class AdapterMethod { none, lora };
/// The biases of the base that are trained, too: none, all of them, or those of the layers with an adapter.
enum class AdapterBias { none, all, lora_only };

struct AdapterOptions {
  AdapterMethod method = AdapterMethod::none;
  std::int64_t r = 16;
  double alpha = 32, dropout = 0;
  bool rs = false;
  AdapterBias bias = AdapterBias::none;
  std::vector<std::string> targets = {"all-linear"};
  std::vector<std::string> keep = {};

  bool given() const { return method != AdapterMethod::none; }
  /// The factor of b a.
  float scale() const {
    const auto rank = static_cast<double>(r);
    return static_cast<float>(alpha / (rs ? std::sqrt(rank) : rank));
  }

  void visit(auto&& f) {
    f("method", method, "lora: train matrices of low rank beside those of model.init, which stays as it is; none");
    f("r", r, "rank of these matrices", {.min = 1, .max = 1 << 16});
    f("alpha", alpha, "what they add is multiplied by alpha / r", {.min = 0, .max = 1e6});
    f("rs", rs, "multiply by alpha / sqrt(r) instead (rsLoRA)");
    f("dropout", dropout, "probability of dropping an input of an adapter", {.min = 0, .max = 0.95});
    f("targets", targets,
      "layers that get an adapter: \"all-linear\", those of all blocks; or a list of regular expressions, each of "
      "which is the whole name of a layer or all of it after a dot, such as \"q_proj\"");
    f("bias", bias, "biases of the model that are trained, too: none, all, or lora_only, those of the targets");
    f("keep", keep, "modules that are trained whole, such as \"lm_head\"");
  }
  bool operator==(const AdapterOptions&) const = default;
};

}  // namespace hpcdl::models

template <> struct hpcdl::io::EnumNames<hpcdl::models::AdapterMethod> {
  using Method = models::AdapterMethod;
  static constexpr std::pair<Method, std::string_view> values[] = {{Method::none, "none"}, {Method::lora, "lora"}};
};
template <> struct hpcdl::io::EnumNames<hpcdl::models::AdapterBias> {
  using Bias = models::AdapterBias;
  static constexpr std::pair<Bias, std::string_view> values[] = {
      {Bias::none, "none"}, {Bias::all, "all"}, {Bias::lora_only, "lora_only"}};
};

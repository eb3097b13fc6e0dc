#include "hpcdl/models/adapter_files.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/models/fingerprint.h"
#include "hpcdl/nn/adapter.h"

namespace hpcdl::models {
namespace {

using io::Json;
using io::JsonObject;
using io::shown;

constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::int64_t kLargestConfig = 16 << 20;

/// Keys with which peft computes something else. They must be absent or off.
constexpr const char* kOff[] = {"alora_invocation_tokens",
                                "alpha_pattern",
                                "arrow_config",
                                "corda_config",
                                "eva_config",
                                "exclude_modules",
                                "kasa_config",
                                "layer_replication",
                                "layers_pattern",
                                "layers_to_transform",
                                "lora_bias",
                                "megatron_config",
                                "monteclora_config",
                                "rank_pattern",
                                "target_parameters",
                                "trainable_token_indices",
                                "use_bdlora",
                                "use_dora",
                                "use_qalora",
                                "velora_config"};

bool off(const Json& v) { return v.is_null() || v == false || ((v.is_object() || v.is_array()) && v.empty()); }

std::string last_part(const std::string& name) { return name.substr(name.rfind('.') + 1); }

/// The shortest list that peft matches to these layers and no others.
std::vector<std::string> target_modules(const AdapterFacts& f) {
  std::set<std::string> others, list;
  for (const auto& name : f.no_layers) others.insert(last_part(name));
  for (const auto& name : f.layers) list.insert(others.contains(last_part(name)) ? name : last_part(name));
  return {list.begin(), list.end()};
}

std::vector<std::string> strings(const JsonObject& o, const char* key) {
  std::vector<std::string> list;
  const Json* v = o.find(key);
  if (!v) return list;
  require(v->is_array() && std::ranges::all_of(*v, [](const Json& s) { return s.is_string(); }), "adapter",
          "{}: {}: expected a list of names, found {}", o.where(), key, io::json_kind(*v));
  for (const auto& s : *v) list.push_back(s.get<std::string>());
  return list;
}

}  // namespace

Json make_adapter_config(const AdapterOptions& o, const AdapterFacts& f) {
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", f.base},
          {"inference_mode", true},
          {"r", o.r},
          {"lora_alpha", o.alpha},
          {"lora_dropout", o.dropout},
          {"use_rslora", o.rs},
          {"bias", io::enum_name(o.bias)},
          {"fan_in_fan_out", f.conv1d},
          {"target_modules", target_modules(f)},
          {"modules_to_save", o.keep.empty() ? Json() : Json(o.keep)}};
}

AdapterOptions parse_adapter_config(const Json& json, const std::string& where) {
  const JsonObject o(json, where);
  const auto type = o.need<std::string>("peft_type");
  require(type == "LORA", "adapter", "{}: peft_type: expected LORA, found {}", where, shown(type));
  for (const char* key : kOff)
    if (const Json* v = o.find(key); v && !off(*v))
      fail("adapter", "{}: {} = {} is not supported: expected none", where, key,
           v->is_number() || v->is_boolean() ? v->dump() : shown(v->dump()));
  AdapterOptions options{.method = AdapterMethod::lora};
  options.r = o.need<std::int64_t>("r");
  options.alpha = o.need<double>("lora_alpha");
  options.dropout = o.get_or("lora_dropout", 0.0);
  options.rs = o.get_or("use_rslora", false);
  const auto bias = o.get_or<std::string>("bias", "none");
  const auto& values = io::EnumNames<AdapterBias>::values;
  const auto* known = std::ranges::find(values, bias, [](const auto& v) { return v.second; });
  require(known != std::end(values), "adapter", "{}: bias: expected none, all or lora_only, found {}", where,
          shown(bias));
  options.bias = known->first;
  options.keep = strings(o, "modules_to_save");
  if (const Json* targets = o.find("target_modules"); targets && targets->is_string())
    options.targets = {targets->get<std::string>()};
  else options.targets = strings(o, "target_modules");
  require(options.r >= 1 && options.r <= 1 << 16, "adapter", "{}: r: expected 1 to 65536, found {}", where, options.r);
  require(options.alpha >= 0 && options.alpha <= 1e6, "adapter", "{}: lora_alpha: expected 0 to 1000000, found {}",
          where, options.alpha);
  require(options.dropout >= 0 && options.dropout < 1, "adapter",
          "{}: lora_dropout: expected a probability below 1, found {}", where, options.dropout);
  return options;
}

std::string peft_name(const std::string& name, bool adapted) {
  std::string out = std::string(kPrefix) + name;
  if (adapted && name.ends_with(".bias")) out.insert(out.size() - std::string_view("bias").size(), "base_layer.");
  return out;
}

AdapterFolder AdapterFolder::open(const io::fs::path& given) {
  const bool of_run = is_adapter_folder(given / "model") && !is_adapter_folder(given);
  const auto folder = of_run ? given / "model" : given;
  const auto config = folder / kAdapterConfig;
  std::error_code ignored;
  require(io::fs::exists(config, ignored), "adapter", "{}: expected an adapter ({} and {}), found no {}",
          folder.string(), kAdapterConfig, kAdapterTensors, kAdapterConfig);
  auto options = parse_adapter_config(io::read_json(config, kLargestConfig), config.string());
  AdapterFolder a(folder, std::move(options), io::TensorFolder::open(folder / kAdapterTensors));
  for (const auto& t : a.files_.tensors()) {
    require(t.name.starts_with(kPrefix), "adapter", "{}: tensor {}: expected a name that begins with {}",
            (folder / kAdapterTensors).string(), shown(t.name), kPrefix);
    require(is_float(t.spec.dtype), "adapter", "{}: tensor {}: expected floating-point numbers, found {}",
            (folder / kAdapterTensors).string(), shown(t.name), to_string(t.spec));
  }
  return a;
}

std::optional<View> AdapterFolder::find(const std::string& name) const {
  for (const bool adapted : {true, false})
    if (auto v = files_.find(peft_name(name, adapted))) return v;
  return std::nullopt;
}

View AdapterFolder::at(const std::string& name, const Shape& shape) const {
  const auto v = find(name);
  require(v.has_value(), "adapter", "{}: expected {}, found no tensor of this name", path_.string(),
          peft_name(name, true));
  require(v->shape() == shape, "adapter", "{}: {} belongs to another model: expected {}, found {}", path_.string(),
          peft_name(name, true), to_string(shape), to_string(v->spec()));
  return *v;
}

std::int64_t AdapterFolder::rank(const std::string& layer) const {
  const auto a = find(layer + ".lora_A.weight");
  if (!a) return 0;
  require(a->shape().rank() == 2 && a->shape()[0] == options_.r, "adapter",
          "{}: {}.lora_A.weight: by {} it has {} rows, found {}", path_.string(), layer, kAdapterConfig, options_.r,
          to_string(a->spec()));
  return options_.r;
}

void AdapterFolder::require_no_others(const std::set<std::string>& names) const {
  for (const auto& t : files_.tensors()) {
    auto name = t.name.substr(kPrefix.size());
    if (const auto at = name.find(".base_layer."); at != std::string::npos)
      name.erase(at, std::string_view(".base_layer").size());
    require(names.contains(name), "adapter",
            "{}: {} belongs to no layer of this model: expected the adapter of a model of this family and size",
            path_.string(), shown(t.name));
  }
}

void AdapterFolder::require_base(const io::fs::path& base) const {
  const auto own = read_adapter_base(path_);
  if (!own) return;
  const auto found = fingerprint(base);
  require(
      own->fingerprint == found, "adapter",
      "{} belongs to a model whose weights have the fingerprint {}, but those of {} have {}: use the model that the "
      "adapter was trained on",
      path_.string(), own->fingerprint, base.string(), found);
}

void write_adapter_base(const io::fs::path& folder, const AdapterBase& base) {
  Json json = {{"fingerprint", base.fingerprint}, {"scale", base.scale}};
  if (!base.quantized.empty()) json["quantized"] = base.quantized;
  io::write_file_atomic(folder / kAdapterBase, json.dump(2) + "\n");
}

std::optional<AdapterBase> read_adapter_base(const io::fs::path& folder) {
  const auto path = folder / kAdapterBase;
  std::error_code ignored;
  if (!io::fs::exists(path, ignored)) return std::nullopt;
  const Json json = io::read_json(path, kLargestConfig);
  const JsonObject o(json, path.string());
  return AdapterBase{o.need<std::string>("fingerprint"), static_cast<float>(o.need<double>("scale")),
                     o.get_or<std::string>("quantized", "")};
}

bool is_adapter_folder(const io::fs::path& folder) {
  std::error_code ignored;
  return io::fs::exists(folder / kAdapterConfig, ignored) && !io::fs::exists(folder / "config.json", ignored);
}

}  // namespace hpcdl::models

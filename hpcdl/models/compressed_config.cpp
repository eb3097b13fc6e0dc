#include "hpcdl/models/compressed_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"

namespace hpcdl::models {
namespace {

nn::Structure parse_structure(const io::JsonObject& o) {
  const auto method = o.need<std::string>("method");
  const auto* row = std::ranges::find(nn::kMethodNames, std::string_view(method), &std::pair<nn::Method, std::string_view>::second);
  require(row != std::end(nn::kMethodNames), "io", "{}: method: expected svd, monarch or blast, found {}", o.where(),
          io::shown(method));
  const auto number = [&](const char* key, std::int64_t n) {
    require(n >= 1 && n <= 1 << 24, "io", "{}: {}: expected 1 to {}, found {}", o.where(), key, 1 << 24, n);
    return n;
  };
  nn::Structure s{.method = row->first, .rank = number("rank", o.need<std::int64_t>("rank"))};
  if (s.method != nn::Method::svd) s.blocks = number("blocks", o.need<std::int64_t>("blocks"));
  if (s.method == nn::Method::monarch) s.strided = o.get_or("strided", false);
  return s;
}

}  // namespace

std::map<std::string, nn::Structure> parse_compression(const io::Json& json, const std::string& where) {
  static_cast<void>(io::JsonObject(json, where));  // an object
  std::map<std::string, nn::Structure> layers;
  for (const auto& [name, value] : json.items())
    layers.emplace(name, parse_structure(io::JsonObject(value, fmt::format("{}: {}", where, io::shown(name)))));
  return layers;
}

io::Json make_compression(const std::map<std::string, nn::Structure>& layers) {
  io::Json json = io::Json::object();
  for (const auto& [name, s] : layers) {
    auto& layer = json[name] = {{"method", nn::method_name(s.method)}, {"rank", s.rank}};
    if (s.method != nn::Method::svd) layer["blocks"] = s.blocks;
    if (s.method == nn::Method::monarch) layer["strided"] = s.strided;
  }
  return json;
}

void require_uncompressed(const io::ModelConfig& config, const io::fs::path& folder, std::string_view area) {
  require(config.compressed.empty(), area, "{}: the model is compressed (hpcdl compress): start from the original",
          folder.string());
}

void require_on_gpu(const io::ModelConfig& config) {
  for (const auto& [name, s] : config.compressed)
    if (s.method != nn::Method::svd)
      fail_usage("model",
                 "{} is compressed with method {}, which only a CPU multiplies: use the CPU, or compress the original "
                 "model with --method svd",
                 name, nn::method_name(s.method));
}

}  // namespace hpcdl::models

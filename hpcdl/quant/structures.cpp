#include "hpcdl/quant/structures.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "hpcdl/core/error.h"

namespace hpcdl::quant {
namespace {

nn::Structure parse_structure(const io::JsonObject& o) {
  const auto method = o.need<std::string>("method");
  const auto* row =
      std::ranges::find(nn::kMethodNames, std::string_view(method), &std::pair<nn::Method, std::string_view>::second);
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

Structures parse_structures(const io::Json& json, const std::string& where) {
  static_cast<void>(io::JsonObject(json, where));  // an object
  Structures layers;
  for (const auto& [name, value] : json.items())
    layers.emplace(name, parse_structure(io::JsonObject(value, fmt::format("{}: {}", where, io::shown(name)))));
  return layers;
}

io::Json to_json(const nn::Structure& s) {
  io::Json json = {{"method", nn::method_name(s.method)}, {"rank", s.rank}};
  if (s.method != nn::Method::svd) json["blocks"] = s.blocks;
  if (s.method == nn::Method::monarch) json["strided"] = s.strided;
  return json;
}

io::Json to_json(const Structures& layers) {
  io::Json json = io::Json::object();
  for (const auto& [name, structure] : layers) json[name] = to_json(structure);
  return json;
}

}  // namespace hpcdl::quant

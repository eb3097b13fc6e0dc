#include "hpcdl/io/used_ways.h"

#include <nlohmann/json.hpp>
#include <set>

#include "hpcdl/core/error.h"

namespace hpcdl::io {

Json to_json(const UsedWays& ways) {
  Json calls = Json::array();
  for (const auto& c : ways.calls)
    calls.push_back({{"op", c.key.op}, {"key", c.key.fields}, {"way", c.way}, {"told", c.told}, {"call", c.call}});
  return {{"device", ways.device}, {"calls", std::move(calls)}};
}

UsedWays used_ways_from(const Json& json, const std::string& where) {
  const JsonObject o(json, where);
  UsedWays ways{o.need<std::string>("device"), {}};
  const Json* calls = o.find("calls");
  require(calls && calls->is_array(), "io", "{}: key \"calls\": expected a list", where);
  std::set<WayKey> seen;
  for (const auto& item : *calls) {
    const auto here = fmt::format("{}: call {}", where, ways.calls.size() + 1);
    const JsonObject c(item, here);
    UsedWays::Call call{
        {c.need<std::string>("op"), {}}, c.need<std::string>("way"), c.need<std::string>("call"), c.need<bool>("told")};
    const Json* key = c.find("key");
    require(key && key->is_array(), "io", "{}: key \"key\": expected a list of whole numbers", here);
    for (const auto& field : *key) {
      require(field.is_number_integer(), "io", "{}: key \"key\": expected whole numbers, found {}", here,
              field.type_name());
      call.key.fields.push_back(field.get<std::int64_t>());
    }
    require(seen.insert(call.key).second, "io", "{}: the key of this {} is listed twice", here, call.key.op);
    ways.calls.push_back(std::move(call));
  }
  return ways;
}

}  // namespace hpcdl::io

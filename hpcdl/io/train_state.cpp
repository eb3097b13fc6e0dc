#include "hpcdl/io/train_state.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "hpcdl/io/number_within.h"

namespace hpcdl::io {

Json to_json(const TrainState& s) {
  for (const auto& [name, v] : s.scalars)
    require(std::isfinite(v), "io", "checkpoint: {} is {}; expected a finite number", shown(name), v);
  Json json = {{"step", s.step},
               {"tokens", s.tokens},
               {"seed", s.seed},
               {"scalars", s.scalars},
               {"sampler", {{"epoch", s.epoch}, {"index", s.index}}}};
  if (s.ways) json["ways"] = to_json(*s.ways);
  return json;
}

TrainState train_state_from(const Json& json, const std::string& where) {
  const JsonObject o(json, where);
  TrainState s;
  s.step = need_within(o, "step", 0, kMaxCount);
  s.tokens = need_within(o, "tokens", 0, kMaxCount);
  require(s.tokens >= s.step, "io",
          "{}: key \"tokens\": expected at least one token per step, so {} or more (key \"step\"), found {}", where,
          s.step, s.tokens);
  s.seed = o.need<std::uint64_t>("seed");
  const Json none = Json::object();
  const JsonObject sampler(o.find("sampler") ? *o.find("sampler") : none, where + ": sampler");
  s.epoch = need_within(sampler, "epoch", 0, kMaxCount);
  s.index = need_within(sampler, "index", 0, kMaxCount);
  const JsonObject scalars(o.find("scalars") ? *o.find("scalars") : none, where + ": scalars");
  if (o.find("scalars"))
    for (const auto& item : o.find("scalars")->items())
      s.scalars[item.key()] = scalars.need<double>(item.key().c_str());
  if (const Json* ways = o.find("ways")) s.ways = used_ways_from(*ways, where + ": ways");
  return s;
}

}  // namespace hpcdl::io

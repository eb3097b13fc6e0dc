#include "hpcdl/io/train_state.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace hpcdl::io {

Json to_json(const TrainState& s) {
  for (const auto& [name, v] : s.scalars)
    require(std::isfinite(v), "io", "checkpoint: {} is {}; expected a finite number", shown(name), v);
  return {{"step", s.step},
          {"tokens", s.tokens},
          {"seed", s.seed},
          {"scalars", s.scalars},
          {"sampler", {{"epoch", s.epoch}, {"index", s.index}}}};
}

TrainState train_state_from(const Json& json, const std::string& where) {
  const JsonObject o(json, where);
  TrainState s;
  s.step = o.need<std::int64_t>("step");
  s.tokens = o.need<std::int64_t>("tokens");
  s.seed = o.need<std::uint64_t>("seed");
  const Json none = Json::object();
  const JsonObject sampler(o.find("sampler") ? *o.find("sampler") : none, where + ": sampler");
  s.epoch = sampler.need<std::int64_t>("epoch");
  s.index = sampler.need<std::int64_t>("index");
  const JsonObject scalars(o.find("scalars") ? *o.find("scalars") : none, where + ": scalars");
  if (o.find("scalars"))
    for (const auto& item : o.find("scalars")->items())
      s.scalars[item.key()] = scalars.need<double>(item.key().c_str());
  return s;
}

}  // namespace hpcdl::io

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "hpcdl/io/json.h"
#include "hpcdl/io/used_ways.h"

namespace hpcdl::io {

/// The state of a run, besides its tensors, that it needs to continue as if it had not stopped. Random numbers are
/// counter-based, so seed and step are their whole state; the order of samples is a pure function of (seed, epoch,
/// index).
struct TrainState {
  std::int64_t step = 0, tokens = 0;
  std::uint64_t seed = 0;
  std::int64_t epoch = 0, index = 0;      // the next sample
  std::map<std::string, double> scalars;  // other values: loss scale, best loss, ...; finite, restored bit for bit
  std::optional<UsedWays> ways = {};      // checkpoints of older versions have none

  /// One of the scalars, or `otherwise` if it is not there.
  double scalar(const std::string& name, double otherwise) const {
    const auto it = scalars.find(name);
    return it == scalars.end() ? otherwise : it->second;
  }
  bool operator==(const TrainState&) const = default;
};

Json to_json(const TrainState& state);
TrainState train_state_from(const Json& json, const std::string& where);

}  // namespace hpcdl::io

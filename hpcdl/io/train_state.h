#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "hpcdl/io/json.h"

namespace hpcdl::io {

/// What a run must know, besides its tensors, to go on as if it had never stopped. Random numbers are counter-based, so
/// seed and step are their whole state; the order of samples is a pure function of (seed, epoch, index).
struct TrainState {
  std::int64_t step = 0, tokens = 0;
  std::uint64_t seed = 0;
  std::int64_t epoch = 0, index = 0;      // the next sample
  std::map<std::string, double> scalars;  // whatever else: loss scale, best loss, ...; finite, read back bit for bit
  bool operator==(const TrainState&) const = default;
};

Json to_json(const TrainState& state);
TrainState train_state_from(const Json& json, const std::string& where);

}  // namespace hpcdl::io

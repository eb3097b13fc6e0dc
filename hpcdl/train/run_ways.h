#pragma once
// The ways in which a run computes its calls.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "hpcdl/io/used_ways.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {

/// The first that can compute a call decides.
struct WaySources {
  std::string preferred = {};               // train.ways
  std::optional<io::UsedWays> before = {};  // of the checkpoint from which the run is resumed
  std::shared_ptr<const Ways> tuned = {};
};

/// Sets the ways of a step, before its first pass, and returns what its programs use. `say` hears which calls were
/// computed otherwise before the checkpoint, so that the last bits of results can differ, and for which calls a
/// preferred way is not possible. Nothing is returned if the ways cannot be determined: `say` hears why, and the run
/// goes on.
std::optional<io::UsedWays> set_ways(TrainStep& step, const WaySources& sources,
                                     const std::function<void(std::string_view)>& say);

}  // namespace hpcdl::train

#pragma once

#include <cstdint>
#include <optional>

#include "hpcdl/state/table.h"

namespace hpcdl::models {

/// Makes the entries of a new model in own memory and draws its weights: a pure function of the seed; a part of a
/// parameter gets its part of them. Without a seed the model is only described, and no entry has memory, now or later.
void create(StateTable& table, std::optional<std::uint64_t> seed, bool with_gradients);

}  // namespace hpcdl::models

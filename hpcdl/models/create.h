#pragma once

#include <cstdint>
#include <optional>

#include "hpcdl/models/values.h"
#include "hpcdl/rng.h"
#include "hpcdl/state/table.h"

namespace hpcdl::models {

/// Initial values of a parameter: `count` elements from element `first` of the whole tensor, from a stream of its own.
void draw_values(Pool& pool, const nn::Param& p, const Rng& rng, std::int64_t first, std::int64_t count, float* to);

/// Creates the entries of a new model in its own memory and draws its weights: a pure function of the seed; a part of a
/// parameter receives its part of the values. Without a seed the model is only described, and no entry ever has memory.
/// Later: values are drawn by StateTable::divide() or fill().
void create(StateTable& table, std::optional<std::uint64_t> seed, bool with_gradients, Values values = Values::now);

}  // namespace hpcdl::models

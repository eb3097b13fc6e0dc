#pragma once

#include <algorithm>
#include <iterator>
#include <string_view>

#include "hpcdl/core/error.h"
#include "hpcdl/models/compute_type.h"

namespace hpcdl::python {

/// The type of computing that a caller names.
inline models::ComputeChoice compute_of(std::string_view op, std::string_view word) {
  const auto& choices = io::EnumNames<models::ComputeChoice>::values;
  const auto* const found = std::ranges::find(choices, word, [](const auto& c) { return c.second; });
  require(found != std::end(choices), op, "dtype = \"{}\": expected auto, f32, bf16 or f16", word);
  return found->first;
}

}  // namespace hpcdl::python

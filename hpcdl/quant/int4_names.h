#pragma once

#include <cstdint>
#include <string>

#include "hpcdl/core/tensor.h"

namespace hpcdl::int4 {

/// Names of the parts of a quantised matrix `name` ("...c_fc.weight") in a file.
inline std::string packed_name(const std::string& name) { return name + ".int4"; }
inline std::string scale_name(const std::string& name) { return name + ".int4_scale"; }
inline std::string offset_name(const std::string& name) { return name + ".int4_offset"; }

/// The number of elements of the model that a stored tensor represents.
inline std::int64_t parameters_in(const std::string& name, const Spec& spec) {
  if (name.ends_with(".int4")) return 2 * spec.size();
  return name.ends_with(".int4_scale") || name.ends_with(".int4_offset") ? 0 : spec.size();
}

}  // namespace hpcdl::int4

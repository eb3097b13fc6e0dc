#include "hpcdl/core/describe.h"

#include <fmt/ranges.h>

namespace hpcdl {

std::string to_string(const Shape& s) { return fmt::format("({})", fmt::join(s.begin(), s.end(), ", ")); }

std::string to_string(const Spec& s) {
  return s ? fmt::format("{} {}", dtype_name(s.dtype), to_string(s.shape)) : "absent";
}

}  // namespace hpcdl

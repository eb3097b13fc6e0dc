#include "hpcdl/io/number_within.h"

#include <fmt/format.h>

#include <limits>

namespace hpcdl::io {

std::int64_t need_within(const JsonObject& o, const char* key, std::int64_t low, std::int64_t high) {
  const auto value = o.need<std::int64_t>(key);
  require(value >= low && value <= high, "io", "{}: key \"{}\": expected a whole number from {} to {}, found {}",
          o.where(), key, low, high, value);
  return value;
}

std::uint32_t need_crc32c(const JsonObject& o) {
  return static_cast<std::uint32_t>(need_within(o, "crc32c", 0, std::numeric_limits<std::uint32_t>::max()));
}

}  // namespace hpcdl::io

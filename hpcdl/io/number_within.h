#pragma once
// Whole numbers in files that must lie in a range.

#include <cstdint>

#include "hpcdl/io/json.h"

namespace hpcdl::io {

/// Larger than any count of a run, and far enough from the limit of the type for sums and products with small factors.
inline constexpr std::int64_t kMaxCount = std::int64_t{1} << 48;

/// The whole number of a key. Throws Error with the file, the key, what was expected and what was found unless it lies
/// in [low, high].
std::int64_t need_within(const JsonObject& o, const char* key, std::int64_t low, std::int64_t high);
/// CRC-32C of a file or a tensor.
std::uint32_t need_crc32c(const JsonObject& o);

}  // namespace hpcdl::io

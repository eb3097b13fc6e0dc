#pragma once

#include <cstdint>
#include <string>

namespace hpcdl::io::dcp {

/// The low `bytes` of a number, the lowest first.
inline std::string little_endian(std::uint64_t value, int bytes) {
  std::string s;
  for (int i = 0; i < bytes; ++i, value >>= 8) s += static_cast<char>(value);
  return s;
}

}  // namespace hpcdl::io::dcp

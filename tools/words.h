#pragma once
// Numbers in words, as all reports print them.

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace hpcdl::lab {

/// "1 thread", "2 threads".
inline std::string plural(std::int64_t n, std::string_view what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

/// Three significant digits, without an exponent: 1860, 385, 48.2, 1.03.
inline std::string three_digits(double x) { return fmt::format("{:.{}f}", x, x >= 99.95 ? 0 : x >= 9.995 ? 1 : 2); }

}  // namespace hpcdl::lab

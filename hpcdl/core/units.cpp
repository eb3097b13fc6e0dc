#include "hpcdl/core/units.h"

#include <fmt/format.h>

#include <cmath>

namespace hpcdl {

// A value that rounds up to the next unit is shown in that unit: "1.00 MiB", not "1024.00 KiB".

std::string format_bytes(double bytes) {
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int u = 0;
  while (std::fabs(bytes) >= (u == 0 ? 1023.5 : 1023.995) && u < 4) bytes /= 1024, ++u;
  return u == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, units[u]);
}

std::string format_count(double n) {
  constexpr const char* units[] = {"", "K", "M", "G", "T", "P"};
  int u = 0;
  while (std::fabs(n) >= (u == 0 ? 999.5 : 999.995) && u < 5) n /= 1000, ++u;
  return u == 0 ? fmt::format("{:.0f}", n) : fmt::format("{:.2f}{}", n, units[u]);
}

std::string format_duration(double s) {
  if (!(s >= 0 && s < 1e15)) return "?";
  if (s < 999.5e-6) return fmt::format("{:.0f} us", s * 1e6);
  if (s < 0.9995) return fmt::format("{:.0f} ms", s * 1e3);
  if (s < 59.95) return fmt::format("{:.1f} s", s);
  const auto t = static_cast<long long>(std::llround(s));
  if (t < 3600) return fmt::format("{}m {:02}s", t / 60, t % 60);
  return fmt::format("{}h {:02}m", t / 3600, t % 3600 / 60);
}

}  // namespace hpcdl

#pragma once

#include <string>

namespace hpcdl {

std::string format_bytes(double bytes);       // "1.50 MiB"
std::string format_count(double n);           // "2.47M"
std::string format_duration(double seconds);  // "350 us", "1.2 s", "3m 20s", "2h 05m"

}  // namespace hpcdl

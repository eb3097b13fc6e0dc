#pragma once
// Monotonic time, independent of changes of the system's date.

#include <chrono>

namespace hpcdl {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

}  // namespace hpcdl

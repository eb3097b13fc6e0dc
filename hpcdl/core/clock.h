#pragma once
// Time that passes on this machine, whatever its calendar does.

#include <chrono>

namespace hpcdl {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

}  // namespace hpcdl

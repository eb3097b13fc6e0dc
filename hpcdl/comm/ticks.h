#pragma once
// Time stamps for every call: reading the processor's counter takes a third of the time of reading the
// clock.

#include <cstdint>

#include "hpcdl/comm/transport.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace hpcdl::comm {

/// A counter that grows at the same constant rate on all cores.
inline std::int64_t ticks() {
#if defined(__x86_64__)
  return static_cast<std::int64_t>(__rdtsc());
#else
  return Clock::now().time_since_epoch().count();
#endif
}

/// Converts ticks to time, by the clock at construction and now.
class TickClock {
 public:
  double seconds(std::int64_t elapsed) const {
    const auto [passed, clock] = since_birth();
    return passed > 0 ? static_cast<double>(elapsed) * clock / static_cast<double>(passed) : 0;
  }
  /// Clock::now() at that tick, in nanoseconds.
  std::int64_t nanoseconds_at(std::int64_t then) const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(clock_.time_since_epoch()).count() +
           static_cast<std::int64_t>(seconds(then - ticks_) * 1e9);
  }

 private:
  struct Passed {
    std::int64_t ticks;
    double seconds;
  };
  Passed since_birth() const {
    return {ticks() - ticks_, std::chrono::duration<double>(Clock::now() - clock_).count()};
  }

  std::int64_t ticks_ = ticks();
  Clock::time_point clock_ = Clock::now();
};

}  // namespace hpcdl::comm

#pragma once
// How much a measurement was disturbed by other programs on this machine.

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/core/clock.h"

namespace hpcdl::lab {

struct Disturbance {
  double seconds = 0;          // that were watched
  int processors = 1;          // that this process may run on
  double waited = 0;           // seconds that its threads were ready but did not run, summed
  double others = 0;           // processor seconds of other programs
  double idle = 0;             // processor seconds that were left
  double stolen = 0;           // processor seconds that the host of this virtual machine gave to others
  std::int64_t preempted = 0;  // times that a thread had to leave its processor

  /// Whether figures of that time must not be trusted.
  bool heavy() const;
  /// Why, in words; empty if they may be trusted.
  std::string text() const;
};

nlohmann::ordered_json to_json(const Disturbance& d);

/// Counters of the system, in seconds unless noted.
struct ProcessorTimes {
  double busy = 0, idle = 0, stolen = 0;
};
/// Sum of /proc/stat over these processors; `tick`: seconds of its unit.
ProcessorTimes processor_times(std::string_view proc_stat, const std::vector<int>& processors, double tick);

/// Watches from construction on. The time of children of this process is counted as its own after they have ended.
class DisturbanceWatch {
 public:
  DisturbanceWatch();
  Disturbance so_far() const;

 private:
  struct Counters {
    Clock::time_point when;
    ProcessorTimes system;
    double own = 0;
    std::int64_t preempted = 0;
    std::map<std::string, double> waited;  // by thread
  };
  Counters read() const;

  std::vector<int> processors_;
  Counters begin_;
};

}  // namespace hpcdl::lab

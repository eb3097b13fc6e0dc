#pragma once
// How far a measurement was disturbed by what else ran on this machine meanwhile.

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
  double waited = 0;           // seconds that its threads wanted to run and did not, all together
  double others = 0;           // processor seconds of other programs
  double idle = 0;             // processor seconds that were left
  double stolen = 0;           // processor seconds that the host of this virtual machine gave to others
  std::int64_t preempted = 0;  // times that a thread had to leave its processor

  /// Figures measured meanwhile are not to be trusted.
  bool heavy() const;
  /// Why, in words; empty where they may be trusted.
  std::string text() const;
};

nlohmann::ordered_json to_json(const Disturbance& d);

/// Counters of the system, seconds where nothing else is said.
struct ProcessorTimes {
  double busy = 0, idle = 0, stolen = 0;
};
/// Sum over these processors of what /proc/stat says; `tick`: seconds of its unit.
ProcessorTimes processor_times(std::string_view proc_stat, const std::vector<int>& processors, double tick);

/// Watches from its birth on. What children of this process use is counted as its own once they have ended.
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

#pragma once
// CUPTI, loaded if present: when each kernel, copy and fill ran, in nanoseconds of now_ns().

#include <memory>
#include <string>
#include <vector>

#include "tools/profile/steps.h"

namespace hpcdl::lab {

struct DeviceActivity {
  DeviceSpan span;
  std::uint64_t node = 0;         // node of the graph that launched it; 0: no graph
  std::uint32_t correlation = 0;  // identifies the call that launched it; increases from call to call
};

class Cupti {
 public:
  /// Null if it is not available; `why` gives the reason.
  static std::unique_ptr<Cupti> open(std::string& why);
  virtual ~Cupti() = default;
  virtual void start() = 0;
  virtual void stop() = 0;
  /// Everything that has ended since start(), in no order; to be called after waiting for the work. `lost`: records
  /// that CUPTI dropped.
  virtual std::vector<DeviceActivity> take(std::size_t& lost) = 0;
};

}  // namespace hpcdl::lab

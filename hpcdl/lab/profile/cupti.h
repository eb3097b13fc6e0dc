#pragma once
// CUPTI, loaded if it is there: when each kernel, copy and fill ran, in nanoseconds of now_ns().

#include <memory>
#include <string>
#include <vector>

#include "hpcdl/lab/profile/steps.h"

namespace hpcdl::lab {

struct DeviceActivity {
  DeviceSpan span;
  std::uint64_t node = 0;         // of the graph that it was launched by; 0: by no graph
  std::uint32_t correlation = 0;  // of the call that launched it: rises from call to call
};

class Cupti {
 public:
  /// Null where it cannot be had; `why` says why.
  static std::unique_ptr<Cupti> open(std::string& why);
  virtual ~Cupti() = default;
  virtual void start() = 0;
  virtual void stop() = 0;
  /// What ended since start(), in no order, after the work was waited for. `lost`: records that CUPTI dropped.
  virtual std::vector<DeviceActivity> take(std::size_t& lost) = 0;
};

}  // namespace hpcdl::lab

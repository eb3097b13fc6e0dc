#include "hpcdl/state/page_locked.h"

#include "hpcdl/core/error.h"
#include "hpcdl/core/units.h"

namespace hpcdl {

PinnedRange page_locked(const Buffer& memory, Device device, std::string_view what) {
  if (memory.bytes() == 0 || !device.is_cuda()) return {};
  populate(memory.data(), memory.bytes());
  PinnedRange range(memory.data(), memory.bytes(), device);
  require(
      static_cast<bool>(range), "memory",
      "the system does not let this process page-lock {} of host memory for {}: raise its limit (ulimit -l), or keep "
      "more on the device (offload.*)",
      format_bytes(static_cast<double>(memory.bytes())), what);
  return range;
}

}  // namespace hpcdl

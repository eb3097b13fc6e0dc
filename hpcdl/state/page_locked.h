#pragma once

#include <string_view>

#include "hpcdl/buffer.h"
#include "hpcdl/core/pinned.h"

namespace hpcdl {

/// Page-locks host memory of state that a GPU reaches, as PinnedRange; absent if there is none, or if the device is a CPU.
/// `what` lies in it. Throws Error if the system does not let this process lock as much.
PinnedRange page_locked(const Buffer& memory, Device device, std::string_view what);

}  // namespace hpcdl

#pragma once

#include <cstdint>
#include <string>

#include "hpcdl/device.h"

namespace hpcdl {

struct Room {
  std::int64_t bytes = 0;
  std::string of;  // its kind: "free memory of GPU 0", "free memory of the host", "address space (ulimit -v)"
};

/// What this process may still allocate there. On the host: the least of the free memory (a `share`-th of it, if
/// that many processes do the same), of the limits of the process, and of `limit` (0: none) minus what it has now.
/// `reserved`: addresses that it will reserve besides allocations, for mapped files and for stacks; a
/// limit of addresses is reduced by it.
Room available_memory(Device device, int share = 1, std::int64_t limit = 0, std::int64_t reserved = 0);

}  // namespace hpcdl

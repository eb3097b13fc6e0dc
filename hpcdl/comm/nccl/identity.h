#pragma once
// Identifies the GPU of a rank.

#include <array>
#include <cstdint>

#include "hpcdl/device.h"

namespace hpcdl::comm {

/// Plain bytes, to be sent to other ranks.
struct GpuIdentity {
  std::array<char, 16> uuid;  // a MIG slice has its own
  std::uint64_t host;         // a hash that identifies a running machine
  std::int64_t process;

  bool same_gpu(const GpuIdentity& o) const { return host == o.host && uuid == o.uuid; }
};

GpuIdentity identity_of(Device device);

}  // namespace hpcdl::comm

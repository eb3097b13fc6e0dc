#pragma once
// Planning without memory: how large something would be is found by making it, with addresses that nothing lies at.

#include <cstdint>

#include "hpcdl/core/device.h"

namespace hpcdl {

/// While one lives, Buffers that this thread makes have addresses of their own and no memory behind them. Programs over
/// them can be recorded and planned; whoever would read or write them must ask active() first. Not nested.
class ImaginedMemory {
 public:
  ImaginedMemory();
  ~ImaginedMemory();
  ImaginedMemory(const ImaginedMemory&) = delete;
  ImaginedMemory& operator=(const ImaginedMemory&) = delete;

  /// Bytes that the Buffers made so far and not destroyed would take.
  std::int64_t host_bytes() const;
  std::int64_t device_bytes() const;

  /// Whether one lives in this thread.
  static bool active();
};

}  // namespace hpcdl

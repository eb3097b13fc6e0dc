#pragma once
// NCCL or our own kernels: decided by what was measured, never by what is measured now, so that a run's bits do not depend on its timing.

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace hpcdl::comm {

/// NCCL_P2P_DISABLE=1 is meant for whoever writes to peers.
inline bool peers_wanted() {
  const char* off = std::getenv("NCCL_P2P_DISABLE");
  return !off || std::string_view(off) == "0";
}

/// GPUs of one host with NVLink between all pairs.
constexpr bool peers_are_faster(int size, std::int64_t bytes) { return size <= 8 && bytes <= (std::int64_t{256} << 10); }

}  // namespace hpcdl::comm

#pragma once
// Memory on the GPUs of one host that each of them can write.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "hpcdl/comm/device_group.h"

namespace hpcdl::comm {

inline constexpr int kMaxPeers = 8;

/// One block on the GPU of each rank, zeroed, all mapped by this GPU: by CUDA IPC between processes, directly between
/// threads of one.
class PeerMemory {
 public:
  /// Collective. Null on all ranks where some two of them cannot: on two hosts, without peer access, or more than
  /// kMaxPeers.
  static std::unique_ptr<PeerMemory> connect(const HostExchange& host, Device device, std::int64_t bytes);
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  ~PeerMemory();

  /// As this GPU sees it.
  std::byte* block(int rank) const { return blocks_[static_cast<std::size_t>(rank)]; }
  /// Every pair is joined by NVLink (native atomics between them), not by PCIe.
  bool nvlink() const { return nvlink_; }

 private:
  PeerMemory() = default;

  /// Of this rank, and of the others in this process: a kernel here may still write where a peer has left.
  std::vector<std::shared_ptr<std::byte>> held_;
  std::vector<std::byte*> blocks_;
  std::vector<void*> opened_;  // by IPC
  bool nvlink_ = false;
};

}  // namespace hpcdl::comm

#pragma once
// Memory on the GPUs of one host that all of them can write.

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
  /// Collective. Null on all ranks if two of them cannot: on two hosts, without peer access, or more than
  /// kMaxPeers.
  static std::unique_ptr<PeerMemory> connect(const HostExchange& host, Device device, std::int64_t bytes);
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  ~PeerMemory();

  /// The address in this process.
  std::byte* block(int rank) const { return blocks_[static_cast<std::size_t>(rank)]; }
  /// Every pair is connected by NVLink (native atomics between them), not by PCIe.
  bool nvlink() const { return nvlink_; }

 private:
  PeerMemory() = default;

  /// The blocks of this rank, and of the others in this process: a kernel may still write to a peer that has left.
  std::vector<std::shared_ptr<std::byte>> held_;
  std::vector<std::byte*> blocks_;
  std::vector<void*> opened_;  // by IPC
  bool nvlink_ = false;
};

}  // namespace hpcdl::comm

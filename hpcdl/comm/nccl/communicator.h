#pragma once
// One NCCL communicator, on this rank.

#include <atomic>
#include <chrono>
#include <optional>
#include <string>

#include "hpcdl/comm/device_group.h"
#include "hpcdl/comm/nccl/library.h"

namespace hpcdl::comm::nccl {

/// Calls return before their work is queued (NCCL's non-blocking mode), so that a missing peer costs a
/// deadline instead of blocking the process. All calls but error() and give_up() come from one thread at a time.
class Communicator {
 public:
  /// Collective. Throws PeerLost if it is not connected within the host's timeout.
  Communicator(const HostExchange& host, Device device);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  const Library& library() const { return library_; }
  /// Throws PeerLost after give_up().
  ncclComm_t handle() const;
  /// To be called after every call: waits until NCCL has queued it. Throws if it failed.
  void done(ncclResult_t status, const char* call) const;

  std::optional<std::string> error() const;
  void give_up() noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  ncclResult_t settled(ncclComm_t comm, Clock::time_point deadline) const;

  const Library& library_;
  std::string group_;
  double timeout_;
  std::atomic<ncclComm_t> comm_ = nullptr;
};

}  // namespace hpcdl::comm::nccl

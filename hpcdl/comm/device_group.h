#pragma once
// The part of a group on GPUs: one rank, one GPU. Group makes one when a collective of a CUDA stream first
// asks for it.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "hpcdl/comm/transport.h"
#include "hpcdl/group.h"
#include "hpcdl/stream.h"
#include "hpcdl/tensor.h"

namespace hpcdl::comm {

/// How the ranks of a group communicate over their hosts while they connect their GPUs.
struct HostExchange {
  int rank = 0, size = 1;
  std::string name;      // of the group
  double timeout = 300;  // most seconds that connecting may take
  /// Collective: gathers the same number of bytes from each rank, by rank. Throws PeerLost if one does not come.
  std::function<void(std::span<const std::byte> mine, std::span<std::byte> all)> all_gather;
};

/// Collectives of the ranks of one group between their GPUs, in the order of their stream; the host does not
/// wait. All of them can be captured as a graph and launched again. Tensors are contiguous and on the GPU of the
/// stream; the group has checked them. Calls on different streams are ordered. Algorithm::native is NCCL,
/// Algorithm::shared the kernels that write to the peers' memory; automatic takes what was measured to be faster. NCCL
/// divides by the number of ranks before it adds (avg), our own kernels afterwards.
class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;
  /// beside: see Group::beside().
  virtual void all_reduce(const Stream& s, const Tensor& x, Reduce op, Algorithm a, bool beside) = 0;
  virtual void reduce_scatter(const Stream& s, const Tensor& out, const View& in, Reduce op) = 0;
  virtual void all_gather(const Stream& s, const Tensor& out, const View& in) = 0;
  virtual void all_to_all(const Stream& s, const Tensor& out, const View& in) = 0;
  virtual void broadcast(const Stream& s, const Tensor& x, int root) = 0;
  virtual void send(const Stream& s, const View& x, int to) = 0;
  virtual void receive(const Stream& s, const Tensor& x, int from) = 0;
  virtual void barrier(const Stream& s) = 0;

  /// Whether Algorithm::shared is available.
  virtual bool writes_to_peers() const = 0;
  /// Waits on the host until all queued work of the stream is done. Throws PeerLost if the deadline passes, or
  /// if a collective failed or was given up: then the results are invalid.
  virtual void wait(const Stream& s) = 0;
  /// What went wrong asynchronously, in words; empty: nothing. Any thread.
  virtual std::optional<std::string> error() const = 0;
  /// Ends all running collectives, so that streams become free; later calls throw. Any thread.
  virtual void give_up() noexcept = 0;
};

/// Collective, on the host only: connects the GPUs of the group's ranks. Not while a stream is being captured. Throws
/// Error if two ranks have one GPU, or if this build or this machine has no NCCL.
std::shared_ptr<DeviceGroup> connect_devices(const HostExchange& host, Device device);
bool is_being_captured(const Stream& s);

class Group;
/// Stream::synchronize() with the deadline of the group, for streams with its collectives.
void synchronize(const Group& group, const Stream& s);

}  // namespace hpcdl::comm

#pragma once

#include <memory>
#include <string_view>

#include "hpcdl/comm/dispatch.h"
#include "hpcdl/core/stream.h"

namespace hpcdl::comm {

class Group;

/// What does the collectives of a group on tensors of a device (NCCL), attached by Group::attach(). The group has checked the call.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  virtual Device device() const = 0;
  /// Queues the call on the stream. Returns the bytes that this rank will send.
  virtual std::int64_t run(const Stream& s, const Call& call) = 0;
  /// Collective over the parent of `child`: what serves the group that split() has just made. The child does collectives on a CPU already.
  virtual std::shared_ptr<Backend> split(const Group& child, int color, int key) = 0;
  /// Waits for what is queued, with all other ranks; nothing follows.
  virtual void close() = 0;
  /// Gives up what is queued, without anybody's help: a peer is lost. Called from any thread.
  virtual void abandon() noexcept = 0;
};

}  // namespace hpcdl::comm

#pragma once
// What moves bytes between the ranks of one world. Algorithms are written over it (comm/algo), and never see what is below.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "hpcdl/core/error.h"

namespace hpcdl::comm {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

/// A peer did not do its part in time, or is gone: exit code 71.
class PeerLost : public Error {
 public:
  using Error::Error;
};

/// Memory that ranks of one host share: one block for each of them, each as large as asked for, page-aligned.
class Window {
 public:
  virtual ~Window() = default;
  virtual int size() const = 0;                     // ranks
  virtual std::int64_t bytes() const = 0;           // of a block
  virtual std::byte* block(int index) const = 0;    // of the index-th rank of those that share it
};

/// Point-to-point messages. Messages from one rank to another with one tag arrive in the order they were sent; those with different tags
/// do not see each other. All calls of one rank come from one thread at a time.
class Transport {
 public:
  /// A message under way. Its bytes stay as they are until it is done.
  struct Pending {
    std::uint64_t id = 0;  // 0: done
  };

  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;  // "threads", "mpi", "tcp"
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Number of the host of a rank: hosts are numbered by their lowest rank. Ranks of one host can share memory.
  virtual int host(int rank) const = 0;

  virtual Pending start_send(int to, std::uint32_t tag, std::span<const std::byte> bytes) = 0;
  /// The message must have exactly this many bytes.
  virtual Pending start_receive(int from, std::uint32_t tag, std::span<std::byte> bytes) = 0;
  /// Lets messages advance; true, and `pending` cleared, when this one is done. Throws PeerLost when its peer is gone.
  virtual bool done(Pending& pending) = 0;
  /// Gives up a message that will not come: its bytes are the caller's again.
  virtual void cancel(Pending& pending) = 0;

  /// Collective over `ranks` of this world, all on one host, in this order. Null where the transport has no shared memory.
  virtual std::shared_ptr<Window> share(std::span<const int> ranks, std::uint32_t tag, std::int64_t bytes, Deadline deadline) = 0;
};

/// The ranks of one collective as an algorithm sees them: 0..size-1, their messages under one tag, one deadline for all waits.
class Peers {
 public:
  using Pending = Transport::Pending;

  /// `ranks`: of the world, by rank of the group; must outlive this.
  Peers(Transport& transport, std::span<const int> ranks, int rank, std::uint32_t tag, Deadline deadline)
      : transport_(transport), ranks_(ranks), rank_(rank), tag_(tag), deadline_(deadline) {}

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int host(int rank) const { return transport_.host(ranks_[static_cast<std::size_t>(rank)]); }

  Pending send(int to, std::span<const std::byte> bytes) { return transport_.start_send(world(to), tag_, bytes); }
  Pending receive(int from, std::span<std::byte> bytes) { return transport_.start_receive(world(from), tag_, bytes); }
  bool done(Pending& pending) { return transport_.done(pending); }
  /// Throws PeerLost at the deadline.
  void wait(Pending& pending);

 private:
  int world(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

  Transport& transport_;
  std::span<const int> ranks_;
  int rank_;
  std::uint32_t tag_;
  Deadline deadline_;
};

}  // namespace hpcdl::comm

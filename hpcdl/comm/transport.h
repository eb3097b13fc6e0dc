#pragma once
// Moves bytes between the ranks of one world. Algorithms (comm/algo) are written on top of it, and never see what is
// below.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "hpcdl/core/error.h"

namespace hpcdl::comm {

struct Call;
class Turn;

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

/// A peer did not respond in time, or is gone: exit code 71.
class PeerLost : public Error {
 public:
  explicit PeerLost(const std::string& what, int peer = -1) : Error(what), peer_(peer) {}
  /// Rank in the world of the peer; -1: not known.
  int peer() const { return peer_; }

 private:
  int peer_;
};

/// A rank was asked to stop while ranks still waited for each other: exit code 75, because there is nothing to save.
class Stopped : public Error {
 public:
  using Error::Error;
};

/// Memory that ranks of one host share: one block for each of them, each as large as asked for, page-aligned, zero at
/// first.
class Window {
 public:
  virtual ~Window() = default;
  virtual int size() const = 0;                   // ranks
  virtual std::int64_t bytes() const = 0;         // of a block
  virtual std::byte* block(int index) const = 0;  // of the index-th rank of those that share it
};

/// Point-to-point messages. Messages from one rank to another with one tag arrive in the order they were sent; those
/// with different tags are independent. All calls of one rank come from one thread at a time.
class Transport {
 public:
  /// A message under way. Its bytes must not change until it is done.
  struct Pending {
    std::uint64_t id = 0;  // 0: done
    int peer = -1;         // the other side, by its rank in the world
  };

  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;  // "threads", "mpi", "tcp"
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Number of the host of a rank: hosts are numbered by their lowest rank. Ranks of one host can share memory.
  virtual int host(int rank) const = 0;
  /// The name of the host of a rank, for messages.
  virtual std::string host_name(int rank) const = 0;

  virtual Pending start_send(int to, std::uint32_t tag, std::span<const std::byte> bytes) = 0;
  /// The message must have exactly this many bytes.
  virtual Pending start_receive(int from, std::uint32_t tag, std::span<std::byte> bytes) = 0;
  /// Lets messages advance; true, with `pending` cleared, if this one is done. Throws PeerLost if its peer is gone.
  virtual bool done(Pending& pending) = 0;
  /// Cancels a message: its bytes belong to the caller again.
  virtual void cancel(Pending& pending) = 0;
  /// Cancels all messages of this rank.
  virtual void withdraw() = 0;
  /// Throws PeerLost if this rank is known to be gone; for waits on shared memory. -1: any rank.
  virtual void check(int rank) = 0;
  /// Sleeps until something may have happened, at most this long.
  virtual void nap(std::chrono::microseconds at_most) = 0;
  /// This rank gives up: the others, if they can be told, lose it at once instead of at their deadlines. From
  /// any thread.
  virtual void leave(std::string_view why) noexcept = 0;

  /// Collective over `ranks` of this world, all on one host, in this order. Null if the transport has no shared
  /// memory.
  virtual std::shared_ptr<Window> share(std::span<const int> ranks, std::uint32_t tag, std::int64_t bytes,
                                        Deadline deadline) = 0;

  class Native;
  /// Collective: Algorithm::native over these ranks. Null if the transport has no library with collectives.
  virtual std::unique_ptr<Native> native(std::span<const int> /*ranks*/, std::uint32_t /*tag*/) { return nullptr; }
};

/// Collectives of the library of a transport, over the ranks that it was made for. Calls come one at a
/// time.
class Transport::Native {
 public:
  virtual ~Native() = default;
  virtual void start(const Call& call) = 0;
  /// Whether the call that was started is done.
  virtual bool done() = 0;
};

/// How long and how actively to wait.
struct Patience {
  std::chrono::nanoseconds deadline{std::chrono::seconds(600)};
  int spins = 1000;                             // number of polls before the processor is given up for the first time
  std::chrono::nanoseconds poll{};              // and then time of polling
  bool beside = false;                          // a computing thread needs the processor: yields come before polls
  const std::atomic<bool>* given_up = nullptr;  // set: waits end with PeerLost
  Turn* turn = nullptr;                         // of the waiting thread: waits pass it to others
};

/// One iteration of a waiting loop.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// The ranks of one collective as an algorithm sees them: 0..size-1, their messages under one tag, one deadline for all
/// waits.
class Peers {
 public:
  using Pending = Transport::Pending;

  /// `ranks`: of the world, by rank of the group; must outlive this.
  Peers(Transport& transport, std::span<const int> ranks, int rank, std::uint32_t tag, const Patience& patience)
      : transport_(transport), ranks_(ranks), rank_(rank), tag_(tag), patience_(patience) {}

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int host(int rank) const { return transport_.host(world(rank)); }
  int world_rank(int rank) const { return world(rank); }
  /// A subset of them, under the same tag. `ranks`: of the world; must outlive it.
  Peers among(std::span<const int> ranks, int rank) const { return {transport_, ranks, rank, tag_, patience_}; }
  std::uint32_t tag() const { return tag_; }
  Transport& transport() const { return transport_; }
  /// Of messages sent so far.
  std::int64_t wire_bytes() const { return wire_bytes_; }
  void add_wire_bytes(std::int64_t n) { wire_bytes_ += n; }

  Pending send(int to, std::span<const std::byte> bytes) {
    wire_bytes_ += static_cast<std::int64_t>(bytes.size());
    return transport_.start_send(world(to), tag_, bytes);
  }
  Pending receive(int from, std::span<std::byte> bytes) { return transport_.start_receive(world(from), tag_, bytes); }
  bool done(Pending& pending) { return transport_.done(pending); }

  /// Throws PeerLost at the deadline.
  void wait(Pending& pending) {
    if (pending.id == 0) return;
    wait_world(pending.peer, [&] { return transport_.done(pending); });
  }
  /// Waits until ready() is true, which `rank` (-1: any) causes. Throws PeerLost at the deadline, and if that
  /// rank is gone.
  template <class F> void wait_until(int rank, F&& ready) { wait_world(rank < 0 ? -1 : world(rank), ready); }

 private:
  int world(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

  template <class F> void wait_world(int peer, F&& ready) {
    for (int i = 0; i < patience_.spins; ++i) {
      if (ready()) return;
      relax();
    }
    using Fn = std::remove_reference_t<F>;
    wait_slowly(
        peer, [](void* f) -> bool { return (*static_cast<Fn*>(f))(); },
        const_cast<void*>(static_cast<const void*>(std::addressof(ready))));
  }
  void wait_slowly(int peer, bool (*ready)(void*), void* context);

  Transport& transport_;
  std::span<const int> ranks_;
  int rank_;
  std::uint32_t tag_;
  const Patience& patience_;
  Deadline deadline_{};  // set by the first wait that is not short
  std::int64_t wire_bytes_ = 0;
};

}  // namespace hpcdl::comm

#pragma once
// Dispatches a call of a Group to its algorithm.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/comm/algo/staging_trials.h"
#include "hpcdl/comm/transport.h"
#include "hpcdl/dtype.h"
#include "hpcdl/group.h"

namespace hpcdl::comm::algo {
struct Policy;
}

namespace hpcdl::comm {

/// Place of a tensor of a call in memory that the ranks of this host share. Every rank of the group has its own tensor
/// at the same offset of its own block (the message tag ensures it).
struct InWindow {
  const Window* window = nullptr;  // null: private memory
  std::int64_t offset = 0;

  explicit operator bool() const { return window != nullptr; }
  /// index: among the ranks of the group on this host, see Shared.
  std::byte* at(int index) const { return window->block(index) + offset; }
};

/// One collective. Sizes have been checked: `count` is the number of elements of all_reduce, broadcast, send and
/// receive (in = out), or of one rank's part in reduce_scatter (in: size * count), all_gather (out: size * count) and
/// all_to_all (both).
struct Call {
  Collective what = Collective::barrier;
  Reduce op = Reduce::sum;
  Algorithm algorithm = Algorithm::automatic;
  DType dtype = DType::u8;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::int64_t count = 0;
  bool beside = false;  // Group::beside()
  int peer = -1;        // broadcast: root; send: to; receive: from
  InWindow in_place, out_place;

  std::int64_t bytes() const { return count * dtype_bytes(dtype); }
};

/// Memory that the ranks of a group on this host share: lines for flags, and room to stage tensors that lie in private
/// memory.
class Shared {
 public:
  using Flag = std::atomic<std::uint64_t>;
  static constexpr int kLines = 64;                                // cache lines for flags, of each rank
  static constexpr std::int64_t kStaging = std::int64_t{1} << 20;  // bytes, of each rank
  static constexpr std::int64_t kBytes = kLines * 64 + kStaging;

  /// `ranks`: those of the group on this host in ascending order; they are the blocks of the window.
  Shared(std::shared_ptr<Window> window, std::vector<int> ranks, int index);

  int size() const { return static_cast<int>(ranks_.size()); }
  int index() const { return index_; }                   // of this rank
  std::span<const int> ranks() const { return ranks_; }  // of the group
  Flag& flag(int index, int line, int word = 0) const {
    return *reinterpret_cast<Flag*>(window_->block(index) + line * 64 + word * 8);
  }
  std::byte* staging(int index) const { return window_->block(index) + kLines * 64; }
  /// Whether each rank has its own processor, from the CPUs that each may use. Not known before the first
  /// phase that they passed together.
  std::optional<bool> has_processor_each() const;

  /// A counter for algorithms; starts at 0 on every rank, and stays the same on all of them if algorithms keep it
  /// so.
  std::uint64_t epoch = 0;
  algo::StagingTrials trials;

 private:
  static constexpr int kSeat = 3;  // line of the flags: the first processor of a rank, counted from 1

  std::shared_ptr<Window> window_;
  std::vector<int> ranks_;
  int index_;
};

/// Private scratch memory that is kept from call to call.
class Scratch {
 public:
  std::byte* bytes(std::int64_t n) {
    if (buffer_.bytes() < n) buffer_ = Buffer(n);
    return buffer_.data();
  }

 private:
  Buffer buffer_;
};

/// What an algorithm uses besides the call.
struct Ground {
  Peers& peers;
  Shared* shared;  // of the ranks on this host; null if every host has one rank, or the transport has no
                   // shared memory
  bool one_host;   // all ranks of the group are on this host
  Scratch& scratch;
  Transport::Native* native;             // null unless asked for
  const algo::Policy* policy = nullptr;  // null: the defaults
  int hosts = 1;                         // of the ranks of the group
  int on_host = 0;                       // see algo::Situation
};

/// Runs the collective to its end. The group has at least two ranks. Throws PeerLost.
void run(const Call& call, Ground& ground);

}  // namespace hpcdl::comm

#pragma once
// From a Group's call to the algorithm that does it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "hpcdl/comm/algo/staging_trials.h"
#include "hpcdl/comm/reduce.h"
#include "hpcdl/comm/transport.h"
#include "hpcdl/core/buffer.h"
#include "hpcdl/core/dtype.h"

namespace hpcdl::comm::algo {
struct Policy;
}

namespace hpcdl::comm {

/// Where a tensor of a call lies in memory that this host's ranks share. Every rank of the group has its own at the
/// same offset of its own block (the message tag sees to it).
struct InWindow {
  const Window* window = nullptr;  // null: private memory
  std::int64_t offset = 0;

  explicit operator bool() const { return window != nullptr; }
  /// index: among the ranks of the group on this host, see Shared.
  std::byte* at(int index) const { return window->block(index) + offset; }
};

/// One collective. Sizes have been checked: `count` elements are what all_reduce, broadcast, send and receive work on
/// (in = out), or one rank's part in reduce_scatter (in: size * count), all_gather (out: size * count) and all_to_all
/// (both).
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

/// Memory of a group that its ranks on this host see: lines for flags, and room to stage tensors that lie in private
/// memory.
class Shared {
 public:
  using Flag = std::atomic<std::uint64_t>;
  static constexpr int kLines = 64;                                // cache lines for flags, of each rank
  static constexpr std::int64_t kStaging = std::int64_t{1} << 20;  // bytes, of each rank
  static constexpr std::int64_t kBytes = kLines * 64 + kStaging;

  /// `ranks`: of the group, those on this host in rising order, which are the blocks of the window.
  Shared(std::shared_ptr<Window> window, std::vector<int> ranks, int index);

  int size() const { return static_cast<int>(ranks_.size()); }
  int index() const { return index_; }                   // of this rank
  std::span<const int> ranks() const { return ranks_; }  // of the group
  Flag& flag(int index, int line, int word = 0) const {
    return *reinterpret_cast<Flag*>(window_->block(index) + line * 64 + word * 8);
  }
  std::byte* staging(int index) const { return window_->block(index) + kLines * 64; }
  /// Whether each rank has a processor of its own, as all have said where they may run. Not known before the first
  /// phase that they have passed together.
  std::optional<bool> has_processor_each() const;

  /// For algorithms to count with; starts at 0 on every rank, and stays the same on all of them if algorithms keep it
  /// so.
  std::uint64_t epoch = 0;
  algo::StagingTrials trials;

 private:
  static constexpr int kSeat = 3;  // line of the flags: the first processor of a rank, counted from 1

  std::shared_ptr<Window> window_;
  std::vector<int> ranks_;
  int index_;
};

/// Private working memory that is kept from call to call.
class Scratch {
 public:
  std::byte* bytes(std::int64_t n) {
    if (buffer_.bytes() < n) buffer_ = Buffer(n);
    return buffer_.data();
  }
  std::vector<Transport::Pending> pending;  // empty between calls

 private:
  Buffer buffer_;
};

/// What an algorithm works with besides the call.
struct Ground {
  Peers& peers;
  Shared* shared;  // of the ranks on this host; null where there is one rank on every host, or the transport has no
                   // shared memory
  bool one_host;   // all ranks of the group are on this host
  Scratch& scratch;
  Transport::Native* native;             // null unless asked for
  const algo::Policy* policy = nullptr;  // null: the defaults
  int hosts = 1;                         // of the ranks of the group
  int on_host = 0;                       // see algo::Situation
};

/// Runs to the end. The group has at least two ranks. Throws PeerLost.
void run(const Call& call, Ground& ground);

}  // namespace hpcdl::comm

#pragma once
// How ranks of one host keep step in shared memory, and how threads see each other's tensors.

#include <array>

#include "hpcdl/comm/algo/pieces.h"

namespace hpcdl::comm::algo {

/// A phase ends when all ranks have come to it with the same tag: what ranks wrote before it is visible to all after it, and ranks that call
/// different things never pass. Two phases lie between two uses of one half of the staging memory, so that nobody still reads it.
class Phases {
 public:
  explicit Phases(Ground& g) : peers_(g.peers), shared_(*g.shared) {}

  int size() const { return shared_.size(); }
  int index() const { return shared_.index(); }
  /// Of a rank, for what is written before the next meet() and read after it.
  std::byte* staging(int index) const { return shared_.staging(index) + (shared_.epoch + 1) % 2 * kHalf; }
  /// The same, between that meet() and the one after.
  std::byte* staged(int index) const { return shared_.staging(index) + shared_.epoch % 2 * kHalf; }
  void meet();

  static constexpr std::int64_t kHalf = Shared::kStaging / 2;

 private:
  Peers& peers_;
  Shared& shared_;
};

/// Whether all ranks are threads of one process. The same on all ranks; collective at a group's first call, remembered in its shared memory.
bool one_process(Phases& p, Ground& g);

/// Addresses of tensors of all ranks of one process. Publishing is a phase, from which they may be read until the next.
class Others {
 public:
  Others(Phases& p, Ground& g, const std::byte* mine);
  std::byte* at(int index) const { return reinterpret_cast<std::byte*>(addresses_[static_cast<std::size_t>(index)]); }

 private:
  std::vector<std::uint64_t> addresses_;
};

}  // namespace hpcdl::comm::algo

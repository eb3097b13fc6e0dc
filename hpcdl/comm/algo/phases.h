#pragma once
// How ranks of one host keep step in shared memory, and how they see each other's private memory.

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

/// How a rank gets at private memory of the other ranks of its host.
enum class Reach : std::uint8_t {
  none = 1,  // staging it is
  copies,    // the system copies from one process to another (process_vm_readv)
  direct,    // one process
};

/// The same on all ranks. Collective at a group's first call, remembered in its shared memory.
Reach reach(Phases& p, Ground& g);

/// Addresses of memory of all ranks. Publishing is a phase, from which they may be read until the next.
class Others {
 public:
  Others(Phases& p, Ground& g, const std::byte* mine);
  const std::byte* at(int index) const { return reinterpret_cast<const std::byte*>(addresses_[static_cast<std::size_t>(index)]); }
  /// Copies from a rank's memory.
  void read(int index, std::byte* to, const std::byte* from, std::int64_t n) const;

 private:
  Reach reach_;
  std::vector<std::uint64_t> addresses_;
  std::vector<int> processes_;
};

}  // namespace hpcdl::comm::algo

#pragma once
// How ranks of one host keep step in shared memory.

#include "hpcdl/comm/algo/pieces.h"

namespace hpcdl::comm::algo {

/// A phase ends when all ranks have come to it with the same tag: what ranks wrote before it is visible to all after
/// it, and ranks that call different things never pass. Two phases lie between two uses of one half of the staging
/// memory, so that nobody still reads it.
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
  /// And each rank tells all a word, which told() has until the next phase.
  void meet(std::uint64_t tells);
  std::uint64_t told(int index) const { return word(index, shared_.epoch).load(std::memory_order_relaxed); }

  static constexpr std::int64_t kHalf = Shared::kStaging / 2;

 private:
  /// Beside the flag of the phase, so that it comes with it; two by turns, as others may still read the last.
  Shared::Flag& word(int index, std::uint64_t epoch) const {
    return shared_.flag(index, kPhase, 1 + static_cast<int>(epoch % 2));
  }

  static constexpr int kPhase = 0;  // line of the flags

  Peers& peers_;
  Shared& shared_;
};

}  // namespace hpcdl::comm::algo

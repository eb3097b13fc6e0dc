#pragma once
// How ranks of one host synchronise in shared memory.

#include "hpcdl/comm/algo/pieces.h"

namespace hpcdl::comm::algo {

/// A phase ends when all ranks have reached it with the same tag: what ranks wrote before it is visible to all after
/// it, and ranks that make different calls never pass. Two phases lie between two uses of one half of the staging
/// memory, so no rank still reads it.
class Phases {
 public:
  explicit Phases(Ground& g) : peers_(g.peers), shared_(*g.shared) {}

  int size() const { return shared_.size(); }
  int index() const { return shared_.index(); }
  /// The half of a rank's memory that is written before the next meet() and read after it.
  std::byte* staging(int index) const { return shared_.staging(index) + (shared_.epoch + 1) % 2 * kHalf; }
  /// The same, between that meet() and the following one.
  std::byte* staged(int index) const { return shared_.staging(index) + shared_.epoch % 2 * kHalf; }
  void meet();
  /// Also sends a word to all ranks, which told() returns until the next phase.
  void meet(std::uint64_t tells);
  std::uint64_t told(int index) const { return word(index, shared_.epoch).load(std::memory_order_relaxed); }

  static constexpr std::int64_t kHalf = Shared::kStaging / 2;

 private:
  /// In the line of the phase's flag, so that both arrive together; two in turns, because others may still read the
  /// last.
  Shared::Flag& word(int index, std::uint64_t epoch) const {
    return shared_.flag(index, kPhase, 1 + static_cast<int>(epoch % 2));
  }

  static constexpr int kPhase = 0;  // line of the flags

  Peers& peers_;
  Shared& shared_;
};

}  // namespace hpcdl::comm::algo

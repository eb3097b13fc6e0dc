#pragma once

#include <algorithm>
#include <unordered_map>

#include "hpcdl/infer/drafter.h"
#include "hpcdl/infer/ngram_index.h"

namespace hpcdl::infer {

/// How much a text's earlier parts are trusted. A wrong proposal doubles the length of a match that the next one needs,
/// so that a text without repetitions costs few passes over more than one token; right ones make proposals longer.
class NgramTrust {
 public:
  static constexpr std::int64_t kMostTokens = 15;
  /// Tokens to propose after a match of this length.
  std::int64_t tokens(std::int64_t length) const { return length >= needed_ ? tokens_ : 0; }
  void learn(std::int64_t proposed, std::int64_t accepted) {
    if (accepted == 0) needed_ = std::min(2 * needed_, kMostNeeded);
    else needed_ = std::max(needed_ / 2, NgramIndex::kShortest);
    if (accepted == proposed) tokens_ = std::min(std::max(tokens_, 2 * proposed + 1), kMostTokens);
    else tokens_ = std::clamp(accepted + 1, std::int64_t{1}, tokens_);
  }

 private:
  static constexpr std::int64_t kMostNeeded = 64;
  std::int64_t needed_ = NgramIndex::kShortest, tokens_ = 3;
};

/// Proposes what followed the last tokens where they occurred before in the same text (prompt lookup).
class NgramDrafter final : public Drafter {
 public:
  void propose(std::span<Text> texts) override;
  void learn(std::uint64_t id, std::int64_t accepted) override;
  void forget(std::uint64_t id) override { texts_.erase(id); }

 private:
  struct Known {
    NgramIndex index;
    NgramTrust trust;
    std::int64_t proposed = 0;
  };
  std::unordered_map<std::uint64_t, Known> texts_;
};

}  // namespace hpcdl::infer

#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "hpcdl/infer/drafter.h"
#include "hpcdl/infer/packed_passes.h"
#include "hpcdl/infer/page_table.h"

namespace hpcdl::infer {

/// How far a draft model is followed: a token further after a proposal that was right, as far as it was right otherwise,
/// and after each one that was all wrong, not at all for twice as many passes.
class DraftTrust {
 public:
  static constexpr std::int64_t kMostTokens = 8;
  /// Tokens to propose for the next pass.
  std::int64_t next() {
    if (wait_ == 0) return tokens_;
    return --wait_, 0;
  }
  void learn(std::int64_t proposed, std::int64_t accepted) {
    misses_ = accepted > 0 ? 0 : std::min(misses_ + 1, 6);
    if (misses_ > 1) wait_ = std::int64_t{1} << misses_;
    tokens_ = accepted == proposed ? std::min(proposed + 1, kMostTokens) : std::max<std::int64_t>(accepted, 1);
  }

 private:
  std::int64_t tokens_ = 4, wait_ = 0;
  int misses_ = 0;
};

/// Proposes the tokens of a smaller model with the same vocabulary, which it chooses by the rules and the seed of each
/// text. It has pages of its own, and reads the prompts of texts one pass at a time.
class ModelDrafter final : public Drafter {
 public:
  /// `sizes` are those of the engine.
  ModelDrafter(const models::LanguageModel& model, Pool& pool, const PackedPasses::Sizes& sizes);

  void propose(std::span<Text> texts) override;
  void learn(std::uint64_t id, std::int64_t accepted) override;
  void forget(std::uint64_t id) override;

 private:
  struct Known {
    std::vector<std::int32_t> pages;
    std::int64_t done = 0;                  // tokens whose keys are in the pages
    std::int64_t length = 0, proposed = 0;  // of the text, and for it, at the last proposal
    std::int64_t wanted = 0;                // tokens of a proposal
    DraftTrust trust;
  };
  /// A pass over the next tokens of some texts.
  struct Step {
    std::vector<Text*> texts = {};
    std::vector<PackedPasses::Part> parts = {};
    std::vector<std::int32_t> ids = {};
  };
  Step reading(std::span<Text> texts);
  Step continuing(std::span<Text> texts);
  void run(const Step& step);
  std::int32_t chosen(std::size_t row, const SampleRule& rule);
  bool grow(Known& known, std::int64_t tokens);

  const models::LanguageModel& model_;
  PackedPasses::Sizes sizes_;
  PackedPasses passes_;
  PageTable table_;
  RowSampler sampler_;
  std::unordered_map<std::uint64_t, Known> texts_;
};

}  // namespace hpcdl::infer

#pragma once
// The passes of an engine over the next tokens of several texts together, on this rank and on those that share the model
// with it.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "hpcdl/core/pinned.h"
#include "hpcdl/infer/pass_runner.h"
#include "hpcdl/infer/rank_link.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/ops/logprobs/row_logprobs.h"

namespace hpcdl::infer {

class PackedPasses {
 public:
  using Sizes = PassRunner::Sizes;
  /// `ranks`: those that share the model, of which this is the first; null: there are no others.
  PackedPasses(const models::LanguageModel& model, Pool& pool, const Sizes& sizes, RankLink* ranks = nullptr);

  /// What a pass has of one text.
  struct Part {
    std::uint64_t text = 0;  // names it from pass to pass
    RowPages pages;
    std::int64_t before = 0;                    // keys before those of the pass
    std::int64_t left = 0;                      // as in BatchRow
    std::int32_t adapter = -1;                  // as in BatchRow
    std::int64_t tokens = 1;                    // of the pass
    std::int64_t read = 1;                      // of these, the last ones whose logits are wanted
    SampleRule rule = {};                       // GPU: of the first of these; each later one has the next index
    std::span<const RowRules> changes = {};     // GPU: of the logits of each of these; empty: none
    int logprobs = -1;                          // GPU: as in SamplingOptions, at most Logprobs::kMost
    std::span<const std::int32_t> wanted = {};  // GPU: the token of each of these; -1, or empty: the one that is chosen
  };
  /// Runs a pass over these texts, or queues it on a GPU. `tokens`: those of all parts.
  void start(std::span<const Part> parts, std::span<const std::int32_t> tokens);
  /// Whether the last pass was the first one through its program, which takes longer.
  bool was_first() const { return runner_->was_first(); }
  /// The next pass does more than to continue each text of the last one by a token in the same pages.
  void interrupt() { single_.clear(); }
  void copy_page(PagePair to, PagePair from);

  /// The row of the first token that the last pass reads of each part.
  std::span<const std::size_t> first_rows() const { return first_rows_; }
  /// The logits that it reads, on the host, row by row; waits for them.
  std::span<float> logits();
  std::size_t width() const { return static_cast<std::size_t>(model_.config().vocab); }
  /// GPU: the id that the rule of each row chooses; waits for them.
  std::span<const std::int32_t> chosen();
  /// GPU, after chosen() or delivered(): those of the row's token and of the most likely ones; empty if no part of the
  /// pass asks for them.
  std::span<const TokenLogprob> logprobs_of(std::size_t row) const;

  /// GPU, after a pass over one token of each text: passes that continue them with the tokens which the GPU chooses are
  /// queued before the host reads any. deliver() queues the delivery of the tokens of the last pass to place 0 or 1,
  /// repeat() the next pass; delivered() waits for a place.
  void deliver(int place);
  void repeat();
  std::span<const std::int32_t> delivered(int place);
  void end_ahead() { wait(stream()); }

  /// See PassRunner.
  void warm();
  std::int64_t recorded() const { return runner_->recorded(); }
  std::vector<const Instance*> programs(std::int64_t prompt_tokens) { return runner_->programs(prompt_tokens); }

  /// The program of the last pass; null before the first one.
  const Instance* last() const { return runner_->last(); }
  /// Throws if ranks that share the model are lost.
  void check_ranks() {
    if (ranks_) ranks_->check();
  }
  Stream& stream() { return runner_->stream(); }
  const Stream& stream() const { return runner_->stream(); }

 private:
  struct Ahead {
    Stream reader;
    Event found[2];
  };

  template <class F> void on_all_ranks(Order::Kind kind, std::span<const std::byte> body, F&& f);
  void wait(const Stream& s);
  std::vector<SampleRule> rules_of(std::span<const Part> parts, const BatchLayout& layout) const;
  std::vector<RowRules> changes_of(std::span<const Part> parts, const BatchLayout& layout) const;
  std::vector<std::int32_t> wanted_of(std::span<const Part> parts, const BatchLayout& layout) const;
  void copy_logprobs(int place);

  const models::LanguageModel& model_;
  RankLink* ranks_;
  std::optional<PassRunner> runner_;
  std::vector<std::uint64_t>
      single_;  // the last pass was over one token of each of these, in the same pages; empty: another one
  std::vector<std::size_t> first_rows_;
  Pinned logits_;    // of the last pass, on the host
  Pinned logprobs_;  // of two passes
  int place_ = 0;    // of them, the one whose ids were read last
  std::optional<Ahead> ahead_;
};

}  // namespace hpcdl::infer

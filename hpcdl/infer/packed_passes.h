#pragma once
// The passes of a model over the next tokens of several texts together, whose keys and values lie in one pool of pages.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "hpcdl/core/pinned.h"
#include "hpcdl/infer/batch.h"
#include "hpcdl/infer/kv_pool.h"
#include "hpcdl/instance.h"
#include "hpcdl/models/language_model.h"

namespace hpcdl::infer {

/// Each pass runs through a recorded program for the number of its tokens, rounded up, and of its texts. All programs
/// share one arena.
class PackedPasses {
 public:
  struct Sizes {
    std::int64_t context = 1;    // the most tokens of a text
    std::int64_t sequences = 1;  // the most texts of a pass
    std::int64_t pages = 1;      // of the pool
    std::int64_t budget = 1;     // the most tokens of a pass
    std::int64_t vocab = 0;      // ids from here on are never chosen
    DType kv = DType::none;      // of the pool, as in pool_spec()
    Numerics numerics = {};
  };
  PackedPasses(const models::LanguageModel& model, Pool& pool, const Sizes& sizes);

  /// What a pass has of one text.
  struct Part {
    std::uint64_t text = 0;  // names it from pass to pass
    std::span<const std::int32_t> pages;
    std::int64_t before = 0;  // tokens before those of the pass
    std::int64_t tokens = 1;  // of the pass
    std::int64_t read = 1;    // of these, the last ones whose logits are wanted
    SampleRule rule = {};     // GPU: of the first of these; each later one has the next index
  };
  /// Runs a pass over these texts, or queues it on a GPU. `tokens`: those of all parts.
  void start(std::span<const Part> parts, std::span<const std::int32_t> tokens);
  /// Whether the last pass was the first one through its program, which takes longer.
  bool was_first() const { return was_first_; }
  /// The next pass does more than to continue each text of the last one by a token in the same pages.
  void interrupt() { single_.clear(); }
  void copy_page(std::int32_t to, std::int32_t from) { pool_.copy_page(stream_, to, from); }

  /// The row of the first token that the last pass reads of each part.
  std::span<const std::size_t> first_rows() const { return first_rows_; }
  /// The logits that it reads, on the host, row by row; waits for them.
  std::span<float> logits();
  std::size_t width() const { return static_cast<std::size_t>(model_.config().vocab); }
  /// GPU: the id that the rule of each row chooses; waits for them.
  std::span<const std::int32_t> chosen();

  /// GPU, after a pass over one token of each text: passes that continue them with the tokens which the GPU chooses are
  /// queued before the host reads any. deliver() queues the delivery of the tokens of the last pass to place 0 or 1,
  /// repeat() the next pass; delivered() waits for a place.
  void deliver(int place);
  void repeat() { run(*last_); }
  std::span<const std::int32_t> delivered(int place);
  void end_ahead();

  /// Records all programs that decoding may need, and those of prompts; on a GPU they run and are captured.
  void warm();
  /// Programs that have been recorded so far.
  std::int64_t recorded() const { return recorded_; }
  /// The programs for a prompt of this many tokens and for the new tokens after it.
  std::vector<const Instance*> programs(std::int64_t prompt_tokens);

  /// The program of the last pass; null before the first one.
  const Instance* last() const { return last_ ? &last_->instance : nullptr; }
  Stream& stream() { return stream_; }
  const Stream& stream() const { return stream_; }

 private:
  struct Program {
    Instance instance;
    std::int64_t used;  // the number of the last pass through it
    bool warm = false;  // has run: what a GPU loads lazily has been loaded
  };
  struct Ahead {
    Stream reader;
    Event found[2];
  };

  std::int64_t bucket(std::int64_t tokens) const;
  BatchLayout layout(std::int64_t tokens, std::int64_t sequences, std::int64_t rows, bool single) const;
  BatchLayout layout_of(std::span<const Part> parts) const;
  std::vector<BatchLayout> usual_layouts() const;
  Program& program(const BatchLayout& layout);
  void run(Program& p);
  void set_rules(std::span<const Part> parts);

  const models::LanguageModel& model_;
  Stream stream_;
  Sizes sizes_;
  KvPool pool_;
  BatchMemory memory_;
  std::vector<std::uint64_t>
      single_;  // memory_ describes the last pass, over one token of each of these; empty: others
  std::vector<std::int32_t> ids_of_pass_;
  std::vector<std::size_t> first_rows_;
  Pinned logits_;  // of the last pass, on the host
  Pinned ids_;     // for two passes
  std::shared_ptr<Buffer> arena_;
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, bool>;
  std::map<Key, Program> programs_;
  Program* last_ = nullptr;
  BatchLayout layout_;  // of the last pass
  std::optional<Ahead> ahead_;
  std::int64_t passes_ = 0, recorded_ = 0;
  bool was_first_ = false;
};

}  // namespace hpcdl::infer

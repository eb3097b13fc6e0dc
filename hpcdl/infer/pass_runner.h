#pragma once
// The programs of a model for passes over the next tokens of several texts together, whose keys and values lie in one
// pool of pages. Every rank that shares a model has one, and all run the same passes.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "hpcdl/core/pinned.h"
#include "hpcdl/infer/batch.h"
#include "hpcdl/infer/kv_pool.h"
#include "hpcdl/infer/step_order.h"
#include "hpcdl/instance.h"
#include "hpcdl/models/language_model.h"

namespace hpcdl::infer {

/// A pass runs through a recorded program for the number of its tokens, rounded up, and of its texts. All programs share
/// one arena.
class PassRunner {
 public:
  struct Sizes {
    std::int64_t context = 1;       // the most tokens of a text
    std::int64_t text_pages = 1;    // the most pages of a text
    std::int64_t sequences = 1;     // the most texts of a pass
    std::int64_t pages = 1;         // of the pool
    std::int64_t window_pages = 0;  // as in BatchLayout
    std::int64_t budget = 1;        // the most tokens of a pass
    std::int64_t vocab = 0;         // ids from here on are never chosen
    DType kv = DType::none;         // of the pool, as in pool_spec()
    Numerics numerics = {};
  };
  PassRunner(const models::LanguageModel& model, Pool& pool, const Sizes& sizes);

  /// For a pass over so many tokens of so many texts, of which the head reads `rows`. `single`: one token of each.
  BatchLayout layout(std::int64_t tokens, std::int64_t sequences, std::int64_t rows, bool single) const;
  /// Runs a pass, or queues it on a GPU.
  void start(const Step& step);
  /// The same texts once more, each with the token that the last pass has found, after deliver().
  void repeat() { run(*last_); }
  /// GPU, after a pass over one token of each text: queues the delivery of the tokens that it found to place 0 or 1 of
  /// `ids`.
  void deliver(int place);
  void copy_page(PagePair to, PagePair from) { pool_.copy_page(stream_, to, from); }
  /// Records all programs that decoding may need, and those of prompts; on a GPU they run and are captured.
  void warm();
  /// The programs for a prompt of this many tokens and for the new tokens after it.
  std::vector<const Instance*> programs(std::int64_t prompt_tokens);

  /// The program of the last pass; null before the first one.
  const Instance* last() const { return last_ ? &last_->instance : nullptr; }
  /// Of the last pass.
  const BatchLayout& layout() const { return layout_; }
  /// Whether it was the first one through its program, which takes longer.
  bool was_first() const { return was_first_; }
  /// Room for the ids that two passes find.
  std::int32_t* ids(int place) const { return ids_.as<std::int32_t>() + place * layout_.tokens; }

  const Sizes& sizes() const { return sizes_; }
  /// Programs that have been recorded so far.
  std::int64_t recorded() const { return recorded_; }
  Stream& stream() { return stream_; }
  const Stream& stream() const { return stream_; }

 private:
  struct Program {
    Instance instance;
    std::int64_t used;  // the number of the last pass through it
    bool warm = false;  // has run: what a GPU loads lazily has been loaded
  };

  std::int64_t bucket(std::int64_t tokens) const;
  std::vector<BatchLayout> usual_layouts() const;
  Program& program(const BatchLayout& layout);
  void run(Program& p);
  void take_changes(std::span<const RowRules> changes);

  const models::LanguageModel& model_;
  Stream stream_;
  Sizes sizes_;
  KvPool pool_;
  BatchMemory memory_;
  std::optional<RuleMemory> rules_;  // once a text has any that change logits
  Pinned ids_;
  std::shared_ptr<Buffer> arena_;
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, bool, bool, bool, std::int64_t>;
  std::map<Key, Program> programs_;
  Program* last_ = nullptr;
  BatchLayout layout_;
  std::int64_t passes_ = 0, recorded_ = 0;
  bool was_first_ = false;
};

}  // namespace hpcdl::infer

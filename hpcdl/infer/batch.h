#pragma once
// The operands of a pass over a batch that say where its tokens belong: memory of the engine, which its programs share.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/infer/kv_pool.h"
#include "hpcdl/infer/rule_memory.h"
#include "hpcdl/instance.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/ops/sample/row_sampler.h"

namespace hpcdl::infer {

/// The sizes of a pass over the packed tokens of several sequences, whose keys lie in up to `pages` pages each of a pool
/// of `pool_pages`.
struct BatchLayout {
  std::int64_t tokens = 1, sequences = 1, pages = 1, pool_pages = 1;
  std::int64_t window_pages = 0;  // of the pool of layers with a window; 0: they share the pages of the others
  std::int64_t context = 0;       // positions are less; 0: one for each key that `pages` hold
  std::int64_t rows = 1;          // of logits: `tokens`, one of each; fewer: of those that BatchRow::read says; 0: none
  bool single = false;            // one token of each sequence
  std::int64_t vocab = 0;         // ids from here on are never chosen; 0: none
  DType kv = DType::none;         // of the pool, as in pool_spec()
  RuleRoom rules = {};            // GPU: of those that change logits
  bool adapters = false;          // tokens may have adapters, of those that the model was opened with
  std::int64_t logprobs = -1;     // GPU: as in SamplingOptions, of each row of logits
  /// For one sequence with room for `capacity` tokens.
  static BatchLayout of_one(std::int64_t tokens, std::int64_t capacity, std::int64_t rows);
  /// Whether the head reads some tokens, but not all.
  bool chooses_rows() const { return rows > 0 && rows < tokens; }
  bool operator==(const BatchLayout&) const = default;
};

/// The keys, or the values, of one layer of this rank. `kv`: f32, bf16, f16, i8 or f8_e4m3; none: the type of
/// activations.
Spec pool_spec(const models::LanguageModel& model, std::int64_t pool_pages, DType kv = DType::none);
/// The pools of all layers of this rank, of which some may keep windows only.
std::vector<KvPool::Layer> layers_of_pool(const models::LanguageModel& model, const BatchLayout& layout);
std::int64_t bytes_of_pool(const models::LanguageModel& model, const BatchLayout& layout);
/// The type of activations: that which the model was opened with; else f32 on a CPU, and on a GPU that of the model's matrices where they have 16 bits,
/// and that of their codec where they are quantised.
DType type_of_inference(const models::LanguageModel& model);

/// The model may be only described. Input: the tokens (1, T). Outputs, unless the head reads none: the logits (rows, V),
/// and on a GPU the ids (rows) that the rules of the rows choose, and where the layout asks for them the results of
/// logprobs(). A pass over one token of each sequence overwrites its input with the ids. Pools and batch remain to be bound.
std::shared_ptr<const Pass> batch_pass(const models::LanguageModel& model, const BatchLayout& layout,
                                       const Numerics& numerics = {});

/// The pages of a sequence, in their order. Layers with a window have pages of their own where the layout says so; -1:
/// the window has left it.
struct RowPages {
  std::span<const std::int32_t> all, window = {};
  const std::span<const std::int32_t>& of(std::size_t group) const { return group == 0 ? all : window; }
};

/// One sequence of a batch.
struct BatchRow {
  RowPages pages;
  std::int64_t length = 0;    // its keys before those of the batch
  std::int64_t tokens = 1;    // in the batch
  std::int64_t read = 1;      // of these, the last ones that the head reads, where it does not read all of them
  std::int32_t adapter = -1;  // of the model; -1: none
  std::int64_t left = 0;      // tokens that its pages no longer hold: positions are so much larger than places of keys
};

/// Rows of padding that `tokens` more tokens need, each with up to a page of keys.
std::int64_t padding_rows(std::int64_t tokens);

class BatchMemory {
 public:
  /// `largest`: the most of each size.
  BatchMemory(const BatchLayout& largest, Device device);

  void bind(const BatchLayout& layout, Bindings& to) const;
  /// Copies to the device what a pass over these sequences reads. Tokens and sequences that are missing are padding,
  /// which writes nothing; the layout has padding_rows() for it.
  void set(Stream& s, const BatchLayout& layout, std::span<const BatchRow> rows);
  /// The rule of each row of logits of the next pass on a GPU; every pass counts their indices on.
  void set_rules(Stream& s, std::span<const SampleRule> rules) const;
  /// The token of each row of logits whose log-probability the next pass on a GPU gives; -1: the one that it chooses.
  void set_wanted(Stream& s, std::span<const std::int32_t> ids) const;
  /// The same sequences with one more token each, after a pass over one of each.
  void advance(Stream& s);
  /// The same on a GPU, without a copy from the host: the tokens (1, R) that the pass found go to pinned memory first.
  void deliver_and_advance(Stream& s, std::int32_t* to, const Tensor& tokens);

 private:
  struct Operands {
    Tensor positions, starts, lengths, read, adapters;
    std::array<Tensor, 2> slots, pages;
  };
  Operands operands(const BatchLayout& layout) const;  // on the device
  void count();                                        // one more token of each sequence, on the host

  /// What changes with every pass; then the sequences.
  std::int64_t most_tokens_, most_sequences_, most_pages_;
  std::size_t groups_;                           // of layers with pages of their own
  OwnedTensor moving_, fixed_, rules_, wanted_;  // on the device
  std::vector<std::byte> next_, sequences_;      // on the host

  std::int64_t* slots(std::size_t group) {
    return reinterpret_cast<std::int64_t*>(next_.data()) + static_cast<std::int64_t>(group) * most_tokens_;
  }
  std::int32_t* positions() { return reinterpret_cast<std::int32_t*>(slots(groups_)); }
  std::int32_t* lengths() { return positions() + most_tokens_; }
  std::int32_t* starts() { return reinterpret_cast<std::int32_t*>(sequences_.data()); }
  std::int32_t* read() { return starts() + most_sequences_ + 1; }
  std::int32_t* adapters() { return read() + most_tokens_; }  // of each token
  std::int32_t* pages(std::size_t group) {
    return adapters() + most_tokens_ + static_cast<std::int64_t>(group) * most_sequences_ * most_pages_;
  }

  struct Counted {
    std::int64_t length, left, pages;
  };
  BatchLayout layout_;
  std::vector<Counted> rows_;  // of sequences that are there
};

}  // namespace hpcdl::infer

#pragma once
// The operands of a pass over a batch that say where its tokens belong: memory of the engine, which its programs share.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/instance.h"
#include "hpcdl/models/language_model.h"

namespace hpcdl::infer {

/// The sizes of a pass: `tokens` of one sequence, or one token of each of `sequences`, whose keys lie in up to `pages`
/// pages each of a pool of `pool_pages`.
struct BatchLayout {
  std::int64_t tokens = 1, sequences = 1, pages = 1, pool_pages = 1;
  /// For one sequence with room for `capacity` tokens.
  static BatchLayout of_one(std::int64_t tokens, std::int64_t capacity);
};

/// The keys, or the values, of one layer of this rank.
Spec pool_spec(const models::LanguageModel& model, std::int64_t pool_pages);
/// The type of activations, keys and values: f32 on a CPU; on a GPU that of the model's matrices where they have 16 bits,
/// and that of their codec where they are quantised.
DType type_of_inference(const models::LanguageModel& model);

/// The model may be only described. Input: the tokens (1, T). Outputs: their hidden states, and, with one token a
/// sequence, the logits; on a GPU such a pass also overwrites the tokens with the most likely next ones. Pools and batch
/// remain to be bound.
std::shared_ptr<const Pass> batch_pass(const models::LanguageModel& model, const BatchLayout& layout,
                                       const Numerics& numerics = {});
/// Input: hidden states of one token; output: its logits.
std::shared_ptr<const Pass> head_pass(const models::LanguageModel& model, const Numerics& numerics = {});

/// One sequence of a batch.
struct BatchRow {
  std::span<const std::int32_t> pages;
  std::int64_t length = 0;  // its tokens before those of the batch
};

class BatchMemory {
 public:
  BatchMemory(const BatchLayout& largest, Device device);

  void bind(const BatchLayout& layout, Bindings& to) const;
  /// Copies to the device what a pass over these sequences reads: `layout.tokens` tokens of rows[0] if it has one
  /// sequence, else one of each; rows that are missing are padding, which writes nothing.
  void set(Stream& s, const BatchLayout& layout, std::span<const BatchRow> rows);
  /// The same sequences with one more token each.
  void advance(Stream& s);
  /// The same on a GPU, without a copy from the host: the tokens (1, R) that the pass found go to pinned memory first.
  void deliver_and_advance(Stream& s, std::int32_t* to, const Tensor& tokens);

 private:
  struct Operands {
    Tensor positions, slots, starts, lengths, pages;
  };
  Operands operands(const BatchLayout& layout) const;  // on the device
  void count();                                        // one more token of each sequence, on the host

  /// What changes with every pass; then the sequences.
  std::int64_t most_tokens_, most_sequences_, most_pages_;
  OwnedTensor moving_, fixed_;               // on the device
  std::vector<std::byte> next_, sequences_;  // on the host

  std::int64_t* slots() { return reinterpret_cast<std::int64_t*>(next_.data()); }
  std::int32_t* positions() { return reinterpret_cast<std::int32_t*>(slots() + most_tokens_); }
  std::int32_t* lengths() { return positions() + most_tokens_; }
  std::int32_t* starts() { return reinterpret_cast<std::int32_t*>(sequences_.data()); }
  std::int32_t* pages() { return starts() + most_sequences_ + 1; }

  BatchLayout layout_;
  std::vector<BatchRow> rows_;
};

}  // namespace hpcdl::infer

#pragma once
// Text to train on: tokenizers, files of tokens, and batches of them.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/group.h"
#include "hpcdl/pool.h"

namespace hpcdl {

namespace io {
class Tokenizer;
}
namespace data {
class Loader;
}

class Tokenizer {
 public:
  /// A tokenizer.json, or a model folder that holds one.
  static Tokenizer load(const std::string& file_or_folder);
  /// A byte-level BPE, learned from texts: files, or folders of .txt, .md and .jsonl. The same for any number of
  /// threads.
  static Tokenizer train(const std::vector<std::string>& texts, int vocab, Pool& pool);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Throws Error for text that is not UTF-8.
  std::vector<std::int32_t> encode(std::string_view text) const;
  /// Throws Error for an id outside the vocabulary.
  std::string decode(std::span<const std::int32_t> ids) const;
  /// 1 + the largest id.
  std::int32_t vocab() const;
  /// Writes tokenizer.json.
  void save(const std::string& file) const;

  /// Encodes texts into one file of tokens for Batches, every document after an end-of-text token. Returns the number
  /// of tokens.
  std::int64_t write_tokens(const std::vector<std::string>& texts, const std::string& file, Pool& pool) const;

 private:
  explicit Tokenizer(io::Tokenizer tokenizer);
  std::unique_ptr<io::Tokenizer> tokenizer_;
};

struct BatchOptions {
  std::int64_t batch = 8;     // sequences of this rank
  std::int64_t length = 256;  // tokens of each
  std::uint64_t seed = 0;     // of the order
  std::int32_t vocab = 0;     // ids must be below it; 0: not checked
  comm::Group ranks = {};     // that share the data: each gets its part of the same samples
};

/// Valid until the next call.
struct TokenBatch {
  std::span<const std::int32_t> tokens, targets;  // (batch, length); a target is the token that follows
};

/// Endless batches from files of tokens (those of write_tokens(), llm.c, nanoGPT), in an order that is a pure function
/// of seed and position. A thread prepares them ahead.
class Batches {
 public:
  /// Files, or folders of .bin files. Throws Error if no file holds `length` + 1 tokens.
  Batches(const std::vector<std::string>& files, const BatchOptions& options);
  Batches(Batches&&) noexcept;
  Batches& operator=(Batches&&) noexcept;
  ~Batches();

  TokenBatch next();
  std::int64_t samples_per_epoch() const;

 private:
  std::unique_ptr<data::Loader> loader_;
};

}  // namespace hpcdl

#pragma once
// Byte-pair encoding of one word (Sennrich et al. 2016, on bytes as in GPT-2): the pair of lowest rank is merged first,
// the leftmost of equals, until no pair is left.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hpcdl::io {

using TokenId = std::int32_t;

/// "\x20" is written "Ġ" and so on: the 256 printable characters by which a byte-level vocabulary spells bytes.
const std::array<std::string, 256>& byte_level_alphabet();
std::string to_byte_level(std::string_view bytes);
/// False when `text` has a character outside the alphabet.
bool from_byte_level(std::string_view text, std::string& bytes);

/// Pair of token ids -> (rank, merged id). Open addressing, at most half full.
class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank;
    TokenId id;
  };
  static constexpr std::uint32_t kNone = 0xFFFFFFFFu;

  explicit MergeTable(std::size_t pairs = 0);
  /// A later merge of the same pair replaces the earlier one.
  void insert(TokenId left, TokenId right, Merge merge);
  /// rank kNone when the pair does not merge.
  Merge find(TokenId left, TokenId right) const;

 private:
  struct Slot {
    std::uint64_t pair = ~std::uint64_t{0};
    Merge merge{kNone, 0};
  };
  std::size_t slot_of(std::uint64_t pair) const;
  std::vector<Slot> slots_;
};

/// The parts of a BPE model, as tokenizer.json spells them.
struct BpeVocab {
  std::vector<std::pair<std::string, TokenId>> tokens = {};  // byte-level spelling and id, in any order
  std::vector<std::pair<TokenId, TokenId>> merges = {};      // by rank
  bool ignore_merges = false;                                // a whole word that is a token is not split
  std::string unk = {};  // token for a byte without one; empty: such a byte is dropped
  bool fuse_unk = false;
};

/// Immutable after construction; safe from many threads.
class BpeModel {
 public:
  /// Throws Error for an inconsistent vocabulary: doubled ids, merges of tokens that do not exist, ids far beyond the
  /// count.
  explicit BpeModel(BpeVocab vocab);
  BpeModel(const BpeModel&) = delete;  // by_spelling_ points into vocab_

  /// Appends the ids of one word (raw bytes).
  void encode_word(std::string_view word, std::vector<TokenId>& out) const;

  const BpeVocab& vocab() const { return vocab_; }
  /// Id of a token by its spelling; -1 if there is none.
  TokenId find(std::string_view token) const;
  /// 1 + the largest id.
  TokenId size() const { return size_; }

 private:
  void initial_symbols(std::string_view word, std::vector<TokenId>& out) const;

  BpeVocab vocab_;
  std::unordered_map<std::string_view, TokenId> by_spelling_;
  std::unordered_map<std::string, TokenId> by_bytes_;  // only with ignore_merges
  std::array<TokenId, 256> byte_id_{};                 // -1: no such token
  MergeTable merges_;
  TokenId unk_id_ = -1;
  TokenId size_ = 0;
};

/// Encodes words with a bounded cache of earlier ones. For one thread.
class BpeCache {
 public:
  explicit BpeCache(const BpeModel& model);
  void encode_word(std::string_view word, std::vector<TokenId>& out);

 private:
  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t word = 0, ids = 0;
    std::uint16_t word_size = 0, id_count = 0;  // word_size 0: free
  };
  void forget();
  void remember(Slot& slot, std::uint64_t hash, std::string_view word, std::span<const TokenId> ids);

  const BpeModel& model_;
  std::vector<Slot> slots_;
  std::string words_;
  std::vector<TokenId> ids_;
  std::size_t used_ = 0;
};

}  // namespace hpcdl::io

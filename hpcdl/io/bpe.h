#pragma once
// Byte-pair encoding of one word (Sennrich et al. 2016): the pair of lowest rank is merged first, the leftmost of
// equals, until no pair is left. It starts from bytes, as in GPT-2, or from characters, as in Llama 2.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hpcdl/io/token_model.h"

namespace hpcdl::io {

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
  TokenList tokens = {};                                 // spelling and id, in any order
  std::vector<std::pair<TokenId, TokenId>> merges = {};  // by rank
  bool ignore_merges = false;                            // a whole word that is a token is not split
  std::string unk = {};  // token for a byte or character without one; empty: such a one is dropped
  bool fuse_unk = false;
  bool byte_level = true;      // words are bytes; otherwise characters
  bool byte_fallback = false;  // a character without a token becomes tokens of its bytes
};

class BpeModel : public TokenModel {
 public:
  /// Throws Error for an inconsistent vocabulary: see TokenModel; merges of tokens that do not exist.
  explicit BpeModel(BpeVocab vocab);

  void encode_word(std::string_view word, std::vector<TokenId>& out) const override;
  bool byte_level() const override { return rest_.byte_level; }
  void write_json(const std::function<void(std::string_view)>& to) const override;

  const std::vector<std::pair<TokenId, TokenId>>& merges() const { return rest_.merges; }

 private:
  void append_bytes_of(std::string_view word, std::vector<TokenId>& out) const;
  void append_characters_of(std::string_view word, std::vector<TokenId>& out) const;

  BpeVocab rest_;                                      // without tokens
  std::unordered_map<std::string, TokenId> by_bytes_;  // only with ignore_merges, and of bytes
  std::array<TokenId, 256> byte_id_{};                 // -1: no such token
  std::vector<TokenId> byte_tokens_;                   // only with byte_fallback
  MergeTable merges_;
  TokenId unk_id_ = -1;
};

/// Encodes words with a bounded cache of earlier ones. For one thread.
class WordCache {
 public:
  explicit WordCache(const TokenModel& model);
  void encode_word(std::string_view word, std::vector<TokenId>& out);

 private:
  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t word = 0, ids = 0;
    std::uint16_t word_size = 0, id_count = 0;  // word_size 0: free
  };
  void forget();
  void remember(Slot& slot, std::uint64_t hash, std::string_view word, std::span<const TokenId> ids);

  const TokenModel& model_;
  std::vector<Slot> slots_;
  std::string words_;
  std::vector<TokenId> ids_;
  std::size_t used_ = 0;
};

}  // namespace hpcdl::io

#pragma once
// What turns one word of a text into tokens: byte-pair encoding (bpe.h), Unigram (unigram.h), WordPiece (wordpiece.h).

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hpcdl::io {

using TokenId = std::int32_t;
/// Spellings, as tokenizer.json has them, and ids.
using TokenList = std::vector<std::pair<std::string, TokenId>>;

/// Immutable after construction; safe from many threads.
class TokenModel {
 public:
  /// Throws Error for doubled spellings or ids, and for ids far beyond the count.
  explicit TokenModel(TokenList tokens);
  virtual ~TokenModel() = default;
  TokenModel(const TokenModel&) = delete;  // by_spelling_ points into tokens_

  /// Appends the ids of one word.
  virtual void encode_word(std::string_view word, std::vector<TokenId>& out) const = 0;
  /// Whether words are bytes, which the vocabulary spells in the byte-level alphabet, rather than text.
  virtual bool byte_level() const { return false; }
  /// Passes on the section `model` of tokenizer.json in parts.
  virtual void write_json(const std::function<void(std::string_view)>& to) const = 0;

  const TokenList& tokens() const { return tokens_; }
  /// By id; nullptr for an id without a token.
  const std::string* spelling(TokenId id) const { return by_id_[static_cast<std::size_t>(id)]; }
  /// Id of a token by its spelling; -1 if there is none.
  TokenId find(std::string_view token) const;
  /// 1 + the largest id.
  TokenId size() const { return static_cast<TokenId>(by_id_.size()); }

 protected:
  /// The ids of the tokens "<0x00>" to "<0xFF>", by which models spell bytes of characters that they lack; -1 for those
  /// that do not exist.
  std::vector<TokenId> find_byte_tokens() const;
  /// Appends the byte tokens of a text if all of them exist.
  static bool append_bytes(const std::vector<TokenId>& byte_tokens, std::string_view text, std::vector<TokenId>& out);
  /// {"a": 0, ...} in the order of the ids.
  void write_vocabulary(const std::function<void(std::string_view)>& to) const;

 private:
  TokenList tokens_;
  std::unordered_map<std::string_view, TokenId> by_spelling_;
  std::vector<const std::string*> by_id_;
};

/// The text in quotes, as JSON.
std::string json_text(std::string_view text);

}  // namespace hpcdl::io

#pragma once
// Unigram (Kudo 2018), the model of SentencePiece: of all ways to split a word into tokens, the one whose scores have
// the largest sum (Viterbi).

#include <optional>
#include <span>

#include "hpcdl/io/token_model.h"

namespace hpcdl::io {

struct UnigramVocab {
  TokenList tokens = {};            // ids 0, 1, ... in order
  std::vector<double> scores = {};  // by id; finite
  std::optional<TokenId> unk = {};  // the token of characters without one; required for words that have such
  bool byte_fallback = false;       // characters without a token become tokens of their bytes
};

class UnigramModel : public TokenModel {
 public:
  explicit UnigramModel(UnigramVocab vocab);
  /// Throws Error for a character without a token if there is no unknown one.
  void encode_word(std::string_view word, std::vector<TokenId>& out) const override;
  void write_json(const std::function<void(std::string_view)>& to) const override;

 private:
  /// Tokens by their bytes; the children of a node lie together, sorted.
  struct Node {
    std::uint32_t children = 0, id = kNone;
    std::uint16_t count = 0;
    unsigned char byte = 0;
  };
  static constexpr std::uint32_t kNone = 0xFFFFFFFFu;
  void build_trie();
  const Node* child(const Node& node, char byte) const;
  void append_part(std::string_view part, std::vector<TokenId>& out) const;

  UnigramVocab rest_;  // without tokens
  std::vector<Node> nodes_;
  std::vector<TokenId> byte_tokens_;
  double unk_score_ = 0;
};

}  // namespace hpcdl::io

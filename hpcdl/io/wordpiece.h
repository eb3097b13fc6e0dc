#pragma once
// WordPiece, the model of BERT: the longest token first, from left to right; tokens inside a word have a prefix ("##").

#include "hpcdl/io/token_model.h"

namespace hpcdl::io {

struct WordPieceVocab {
  TokenList tokens = {};
  std::string unk = "[UNK]";  // the token of a word that cannot be split into tokens
  std::string prefix = "##";
  int max_characters = 100;  // longer words are unknown
};

class WordPieceModel : public TokenModel {
 public:
  /// Throws Error if the unknown token does not exist.
  explicit WordPieceModel(WordPieceVocab vocab);
  void encode_word(std::string_view word, std::vector<TokenId>& out) const override;
  void write_json(const std::function<void(std::string_view)>& to) const override;

 private:
  WordPieceVocab rest_;  // without tokens
  TokenId unk_id_;
};

}  // namespace hpcdl::io

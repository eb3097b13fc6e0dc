#include "hpcdl/io/wordpiece.h"

#include <fmt/format.h>

#include <algorithm>

#include "hpcdl/core/error.h"

namespace hpcdl::io {
namespace {

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

}  // namespace

WordPieceModel::WordPieceModel(WordPieceVocab vocab)
    : TokenModel(std::move(vocab.tokens)), rest_(std::move(vocab)), unk_id_(find(rest_.unk)) {
  require(unk_id_ >= 0, "io", "tokenizer.json: unk_token '{}' is not in the vocabulary", rest_.unk);
}

void WordPieceModel::encode_word(std::string_view word, std::vector<TokenId>& out) const {
  const std::size_t before = out.size();
  bool known = std::count_if(word.begin(), word.end(), begins_character) <= rest_.max_characters;
  for (std::size_t at = 0; known && at < word.size();) {
    std::string part = at > 0 ? rest_.prefix : "";
    const std::size_t prefix = part.size();
    part += word.substr(at);
    TokenId id = find(part);
    while (id < 0 && part.size() > prefix) {
      while (!begins_character(part.back())) part.pop_back();
      part.pop_back();
      id = part.size() > prefix ? find(part) : -1;
    }
    known = id >= 0;
    out.push_back(id);
    at += part.size() - prefix;
  }
  if (known) return;
  out.resize(before);
  out.push_back(unk_id_);
}

void WordPieceModel::write_json(const std::function<void(std::string_view)>& to) const {
  to(fmt::format(
      R"({{"type": "WordPiece", "unk_token": {}, "continuing_subword_prefix": {}, "max_input_chars_per_word": {}, "vocab": )",
      json_text(rest_.unk), json_text(rest_.prefix), rest_.max_characters));
  write_vocabulary(to);
  to("}");
}

}  // namespace hpcdl::io

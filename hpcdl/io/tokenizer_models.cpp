// The section `model` of tokenizer.json.
#include <cmath>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/io/bpe.h"
#include "hpcdl/io/tokenizer_json.h"
#include "hpcdl/io/unigram.h"
#include "hpcdl/io/wordpiece.h"

namespace hpcdl::io {
namespace {

void refuse_unless_empty(const Json& model, const char* key) {
  const auto found = model.find(key);
  const bool empty = found == model.end() || found->is_null() ||
                     (found->is_string() && found->get<std::string>().empty()) ||
                     (found->is_boolean() && !found->get<bool>()) || (found->is_number() && found->get<double>() == 0);
  require(empty, "io", "tokenizer.json: the model uses '{}', which is not supported", key);
}

std::pair<std::string, std::string> read_merge(const Json& merge) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  require(merge.is_string(), "io", "tokenizer.json: a merge is neither \"a b\" nor [\"a\", \"b\"]");
  const auto text = merge.get<std::string>();
  const std::size_t space = text.find(' ');
  require(space != std::string::npos && text.find(' ', space + 1) == std::string::npos, "io",
          "tokenizer.json: the merge '{}' is not two tokens with one space between", text);
  return {text.substr(0, space), text.substr(space + 1)};
}

TokenList read_tokens(const Json& model) {
  const Json& tokens = member_of(model, "vocab", "model");
  require(tokens.is_object(), "io", "tokenizer.json: 'vocab' of model is not an object");
  TokenList out;
  for (const auto& [token, id] : tokens.items()) out.emplace_back(token, id_of(id, token));
  return out;
}

std::string text_or(const Json& model, const char* key, std::string otherwise) {
  const auto found = model.find(key);
  return found == model.end() || found->is_null() ? otherwise : text_of(model, key, "model");
}

BpeVocab read_bpe(const Json& model, bool byte_level) {
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
    refuse_unless_empty(model, key);
  // Bytes have no need of it.
  if (byte_level) refuse_unless_empty(model, "byte_fallback");
  BpeVocab vocab;
  vocab.byte_level = byte_level;
  vocab.byte_fallback = flag_of(model, "byte_fallback", false);
  vocab.ignore_merges = flag_of(model, "ignore_merges", false);
  vocab.fuse_unk = flag_of(model, "fuse_unk", false);
  vocab.unk = text_or(model, "unk_token", "");
  vocab.tokens = read_tokens(model);
  std::unordered_map<std::string_view, TokenId> ids;
  for (const auto& [token, id] : vocab.tokens) ids.emplace(token, id);
  const auto known = [&](const std::string& token) {
    const auto found = ids.find(token);
    require(found != ids.end(), "io", "tokenizer.json: a merge names '{}', which is not in the vocabulary", token);
    return found->second;
  };
  for (const Json& merge : array_of(model, "merges", "model")) {
    const auto [left, right] = read_merge(merge);
    vocab.merges.emplace_back(known(left), known(right));
  }
  return vocab;
}

UnigramVocab read_unigram(const Json& model) {
  UnigramVocab vocab;
  for (const Json& entry : array_of(model, "vocab", "model")) {
    require(entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_number() &&
                std::isfinite(entry[1].get<double>()),
            "io", "tokenizer.json: an entry of 'vocab' is not [token, score]");
    vocab.tokens.emplace_back(entry[0].get<std::string>(), static_cast<TokenId>(vocab.tokens.size()));
    vocab.scores.push_back(entry[1].get<double>());
  }
  if (const auto unk = model.find("unk_id"); unk != model.end() && !unk->is_null()) vocab.unk = id_of(*unk, "unk_id");
  vocab.byte_fallback = flag_of(model, "byte_fallback", false);
  return vocab;
}

WordPieceVocab read_wordpiece(const Json& model) {
  constexpr int kMost = 1000;  // the time for a word grows with its square
  WordPieceVocab vocab{.tokens = read_tokens(model)};
  vocab.unk = text_or(model, "unk_token", vocab.unk);
  vocab.prefix = text_or(model, "continuing_subword_prefix", vocab.prefix);
  if (const auto most = model.find("max_input_chars_per_word"); most != model.end()) {
    require(most->is_number_unsigned() && most->get<std::uint64_t>() <= kMost, "io",
            "tokenizer.json: 'max_input_chars_per_word' is not a number up to {}", kMost);
    vocab.max_characters = most->get<int>();
  }
  return vocab;
}

/// Files of older versions do not say.
std::string model_type(const Json& model) {
  if (model.contains("type")) return text_of(model, "type", "model");
  if (model.contains("merges")) return "BPE";
  return model.contains("vocab") && model["vocab"].is_array() ? "Unigram" : "WordPiece";
}

}  // namespace

std::shared_ptr<const TokenModel> read_token_model(const Json& model, bool byte_level) {
  require(model.is_object(), "io", "tokenizer.json: model is not an object");
  const std::string type = model_type(model);
  if (type == "BPE") return std::make_shared<const BpeModel>(read_bpe(model, byte_level));
  require(type == "Unigram" || type == "WordPiece", "io",
          "tokenizer.json: model type '{}' is not supported (BPE, Unigram and WordPiece are)", type);
  require(!byte_level, "io", "tokenizer.json: model type '{}' with pre_tokenizer ByteLevel is not supported", type);
  if (type == "Unigram") return std::make_shared<const UnigramModel>(read_unigram(model));
  return std::make_shared<const WordPieceModel>(read_wordpiece(model));
}

}  // namespace hpcdl::io

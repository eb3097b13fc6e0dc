#pragma once
// Tokens of text, read from and written to the tokenizer.json of Hugging Face: BPE of bytes or characters, Unigram and
// WordPiece. Ids are those of the `tokenizers` library (golden/make_tokenizer_golden.py); a feature of it that is not
// supported here is an Error that names the feature.

#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/io/bpe.h"
#include "hpcdl/io/tokenizer_added.h"
#include "hpcdl/io/tokenizer_decode.h"
#include "hpcdl/io/tokenizer_normalize.h"
#include "hpcdl/io/tokenizer_split.h"

namespace hpcdl::io {

inline constexpr std::string_view kEndOfText = "<|endoftext|>";

/// Immutable and cheap to copy; safe from many threads. For much text use an Encoder (tokenizer_encoder.h).
class Tokenizer {
 public:
  /// From a tokenizer.json, a model folder that holds one, or a GGUF file.
  static Tokenizer load(const std::filesystem::path& file_or_folder);
  /// From the text of a tokenizer.json; `name` is used in messages.
  static Tokenizer parse(std::string_view json, std::string_view name = "tokenizer.json");
  /// From a trained model: the GPT-2 pattern, no normaliser.
  static Tokenizer from_bpe(BpeVocab vocab, std::vector<AddedToken> special);
  /// From a model and the other sections of a tokenizer.json, as JSON. Added tokens are among those of the model.
  static Tokenizer from_model(std::shared_ptr<const TokenModel> model, std::string_view sections,
                              std::vector<AddedToken> added);

  std::string to_json() const;
  void save(const std::filesystem::path& file) const;
  /// Writes tokenizer.json, tokenizer_config.json and special_tokens_map.json, the files of a model folder.
  void save_folder(const std::filesystem::path& folder, int context) const;

  /// Ids of a text. With `add_special`, also the tokens that the post_processor adds (<|begin_of_text|> and so on).
  /// Throws Error for text that is not UTF-8: see replace_invalid_utf8().
  std::vector<TokenId> encode(std::string_view text, bool add_special = false) const;
  /// Text of ids; bytes that are not UTF-8 become U+FFFD. Throws Error for an id outside the vocabulary.
  std::string decode(std::span<const TokenId> ids, bool skip_special = false) const;
  /// What one token adds in the middle of a text, as bytes, which need not be whole characters.
  std::string_view bytes_of(TokenId id) const;

  /// 1 + the largest id.
  TokenId vocab_size() const { return static_cast<TokenId>(bytes_.size()); }
  std::optional<TokenId> find(std::string_view token) const;
  bool is_special(TokenId id) const;
  /// The token that ends or separates documents, by its usual names or by tokenizer_config.json.
  std::optional<TokenId> end_of_text() const { return end_of_text_; }
  void set_end_of_text(TokenId id) { end_of_text_ = id; }
  std::optional<TokenId> begin_of_text() const;

  /// First steps of encoding, for Encoder: added tokens separated, text normalised, words not split yet. `owned` keeps
  /// changed text.
  std::vector<TextPiece> pieces(std::string_view text, std::deque<std::string>& owned) const;
  /// See AddedTokens::over().
  bool added_token_over(std::string_view text, std::size_t at) const;
  const PreTokenizer& splitter() const { return *splitter_; }
  const TokenModel& model() const { return *model_; }
  std::span<const TokenId> prefix() const { return prefix_; }
  std::span<const TokenId> suffix() const { return suffix_; }

 private:
  friend class TokenizerReader;
  friend class StreamDecoder;
  Tokenizer() = default;
  void finish();
  /// As tokenizer.json spells it; throws Error for an id outside the vocabulary.
  std::string_view spelling_of(TokenId id) const;
  /// Passes on the text of tokenizer.json in parts.
  void write_json(const std::function<void(std::string_view)>& to) const;

  std::shared_ptr<const TokenModel> model_;
  std::shared_ptr<const Normalizer> normalizer_;
  std::shared_ptr<const PreTokenizer> splitter_;
  std::shared_ptr<const Decoder> decoder_;
  std::shared_ptr<const AddedTokens> raw_, normalized_;
  std::vector<AddedToken> added_;
  std::vector<TokenId> prefix_, suffix_;
  std::optional<TokenId> end_of_text_;
  std::string normalizer_json_, pre_tokenizer_json_, post_processor_json_, decoder_json_;
  std::vector<std::string_view> bytes_, spellings_;      // by id; of model_ or of kept_
  std::shared_ptr<const std::deque<std::string>> kept_;  // what the model spells differently
  std::vector<bool> special_;                            // by id
};

/// Decodes a growing sequence of ids and returns only whole characters.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(tokenizer), skip_special_(skip_special), state_(*tokenizer.decoder_) {}
  /// The text that became certain with this id; often empty.
  std::string push(TokenId id);
  /// The text that was held back.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  DecodeState state_;  // of text
  std::string held_;   // of bytes
};

}  // namespace hpcdl::io

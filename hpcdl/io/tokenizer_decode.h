#pragma once
// Text of tokens: the decoder section of tokenizer.json.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "hpcdl/io/tokenizer_regex.h"

namespace hpcdl::io {

/// Immutable; a DecodeState holds what a sequence of tokens has come to.
class Decoder {
 public:
  /// Reads ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, WordPiece and Sequences of them; null puts spaces
  /// between the tokens. Throws Error that names anything else.
  static Decoder from_json(const nlohmann::json& section);

  /// Tokens are bytes, to be put together as they are.
  bool byte_level() const { return byte_level_; }
  /// What a token adds in the middle of a text: the byte of "<0x41>" where ByteFallback is, and otherwise text.
  std::string bytes_of(std::string_view spelling) const;

 private:
  friend class DecodeState;
  struct Join {};  // spaces between tokens
  struct Replace {
    Regex pattern;
    std::string content;
  };
  struct ByteFallback {};
  struct Strip {
    std::string content;  // one character
    std::size_t start;
    bool once;  // of the whole text, which Fuse has put together
  };
  struct Metaspace {
    std::string replacement;  // one character
    bool drop_first;
  };
  struct WordPiece {
    std::string prefix;
    bool cleanup;
  };
  using Stage = std::variant<Join, Replace, ByteFallback, Strip, Metaspace, WordPiece>;

  void add(const nlohmann::json& section, int depth);

  std::vector<Stage> stages_;
  bool byte_level_ = false, fused_ = false;
};

/// Decodes token by token; what it returns, put together, is the text of all.
class DecodeState {
 public:
  explicit DecodeState(const Decoder& decoder) : decoder_(decoder), progress_(decoder.stages_.size()) {}
  /// Appends what became certain with this token.
  void push(std::string_view spelling, std::string& out) { step(0, std::string(spelling), out); }
  /// Appends what was held back.
  void finish(std::string& out);

 private:
  friend class Decoder;
  struct Progress {
    std::size_t seen = 0;  // tokens, or characters for Strip
    bool done = false;     // of Strip
    std::string bytes;     // of a run of byte tokens
  };
  void step(std::size_t stage, std::string token, std::string& out);
  void flush(std::size_t stage, std::string& out);

  const Decoder& decoder_;
  std::vector<Progress> progress_;
};

}  // namespace hpcdl::io

#pragma once
// Added and special tokens: found in the raw text before it is split, leftmost first, then the longest.

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/io/token_model.h"

namespace hpcdl::io {

struct AddedToken {
  std::string content;
  TokenId id = -1;
  bool special = true;
  bool normalized = false;              // searched in the normalised text
  bool single_word = false;             // only between characters that do not belong to a word
  bool lstrip = false, rstrip = false;  // includes the white space at its left or right
};

/// A part of a text: a token already known (id >= 0), or text still to be split.
struct TextPiece {
  std::string_view text;
  TokenId id = -1;
  bool begins = true;     // false: continues a text that was cut before it
  bool at_start = false;  // nothing stands before it
};

class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);
  bool empty() const { return tokens_.empty(); }
  /// Appends the pieces of the text, in order and without empty ones.
  void split(std::string_view text, std::vector<TextPiece>& out) const;
  /// Whether a cut at `at`, from find_safe_cut(), would split a token, or separate a space from the token that it
  /// belongs to; also true if that depends on what follows the text.
  bool over(std::string_view text, std::size_t at) const;

 private:
  /// The longest token at text[at], or nullptr.
  const AddedToken* match(std::string_view text, std::size_t at) const;

  std::vector<AddedToken> tokens_;                                       // by first byte, longest first
  std::array<std::pair<std::uint32_t, std::uint32_t>, 256> by_first_{};  // range in tokens_
  std::string firsts_;                                                   // the set of first bytes
};

}  // namespace hpcdl::io

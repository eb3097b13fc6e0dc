#pragma once
// The two families of splitting patterns that nearly every byte-level BPE uses, written by hand: several times faster
// than a regular-expression engine, and with the Unicode version of the `tokenizers` library. tokenizer_scan.test.cpp
// compares them with PCRE2.

#include <cstddef>
#include <optional>
#include <string_view>

namespace hpcdl::io {

inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// A pattern of one of the two families. Its words cover every text without gaps.
struct WordScan {
  bool gpt2 = false;
  int max_digits = 0;  // of one word; the GPT-2 pattern has no limit

  /// The scan that equals `pattern`, if there is one.
  static std::optional<WordScan> of(std::string_view pattern);
  /// End of the word that begins at `at` < text.size(). The text is well-formed UTF-8.
  std::size_t word_end(std::string_view text, std::size_t at) const;
};

/// The smallest position >= from, between a letter and an ASCII white space; npos if there is none. In both families a
/// word always ends there and no match looks across, so a text may be cut there.
std::size_t find_safe_cut(std::string_view text, std::size_t from);

}  // namespace hpcdl::io

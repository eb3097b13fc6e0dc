#pragma once
// Unicode for text handling: validating and repairing UTF-8, classes of code points, normal forms.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace hpcdl::io {

/// Offset of the first byte that is not part of well-formed UTF-8 (surrogates, overlong forms and values above
/// U+10FFFF are not); npos if all bytes are.
std::size_t find_invalid_utf8(std::string_view text);

/// Replaces every maximal ill-formed part by U+FFFD (Unicode 15, table 3-8: as browsers, Python and Rust do).
std::string replace_invalid_utf8(std::string_view text);

/// Length of the longest prefix that does not end inside a character which further bytes could still complete.
std::size_t complete_utf8_prefix(std::string_view bytes);

/// Returns the code point at text[at], and moves `at` past it. The text must be well-formed.
inline char32_t next_code_point(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  const char32_t lead = byte(at);
  if (lead < 0x80) return at += 1, lead;
  if (lead < 0xE0) return at += 2, (lead & 0x1F) << 6 | (byte(at - 1) & 0x3F);
  if (lead < 0xF0) return at += 3, (lead & 0xF) << 12 | (byte(at - 2) & 0x3F) << 6 | (byte(at - 1) & 0x3F);
  return at += 4, (lead & 7) << 18 | (byte(at - 3) & 0x3F) << 12 | (byte(at - 2) & 0x3F) << 6 | (byte(at - 1) & 0x3F);
}
void append_utf8(std::string& out, char32_t point);

enum class CharClass : std::uint8_t { other, letter, number, space };

/// Letter (\p{L}), number (\p{N}), white space (\s) or none of them, as in the `tokenizers` library.
CharClass char_class(char32_t point);
inline bool is_space(char32_t point) { return char_class(point) == CharClass::space; }
/// \w of the Rust regex crate: alphabetic, mark, decimal number, connector punctuation, joiner.
bool is_word(char32_t point);

// As BERT's parts of the `tokenizers` library take characters; control characters include U+FFFD, but neither tab, line
// feed nor carriage return.
bool is_control(char32_t point);
bool is_punctuation(char32_t point);
bool is_nonspacing_mark(char32_t point);
bool is_mark(char32_t point);

/// Every character in lower or upper case, whatever stands around it: a final sigma is not told apart.
std::string to_lower(std::string_view text);
std::string to_upper(std::string_view text);

enum class NormalForm { nfc, nfd, nfkc, nfkd };
std::string normalize(NormalForm form, std::string_view text);

}  // namespace hpcdl::io

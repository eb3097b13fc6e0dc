#pragma once
// Text to learn from without a download: the prose that any Debian machine carries in its documentation.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace hpcdl::cli {

struct FoundText {
  std::string text;                 // documents, each ended by an empty line
  std::int64_t files = 0;           // that gave at least one paragraph
  std::vector<std::string> places;  // folders they came from
};

/// Paragraphs of running English from licences, manuals in source form, docstrings and package documentation, each
/// paragraph once, up to `bytes`. Deterministic for one machine.
FoundText find_text(std::int64_t bytes);

/// Where a part of a text may begin, at `from` or soon after it: at a paragraph if one begins before `until`, else at
/// a line, else at a word, else at a character.
std::size_t begin_of_part(std::string_view text, std::size_t from, std::size_t until);

/// Bytes of the first `count` words of a text, or of fewer words if those exceed `most` bytes. A word that is
/// longer than that is cut between characters.
std::size_t first_words(std::string_view text, int count, std::size_t most);

/// A text that was cut after some tokens may end within a word: replaces that part of a word with "...".
std::string whole_words(const std::string& text);

/// Whether a paragraph reads like prose rather than code, tables or lists of names.
bool is_prose(const std::string& paragraph);

}  // namespace hpcdl::cli

#pragma once
// How byte-level tokenizers cut a text into words. GGUF files name the pattern in tokenizer.ggml.pre and do not hold it.

#include <array>
#include <span>
#include <string_view>

namespace hpcdl::io {

struct SplitPattern {
  std::span<const std::string_view> names;        // that mean this pattern; the first is written
  std::array<std::string_view, 3> patterns = {};  // one after the other; matches are words
  bool as_gpt2 = false;                           // then the pattern of GPT-2
  bool whole_words = false;                       // a word that is a token is not split
  bool begins = false;                            // texts begin with the bos token, unless the file says otherwise
};

/// Throws Error that names `where` and the known patterns for an unknown one.
const SplitPattern& split_pattern(std::string_view name, std::string_view where);
std::span<const SplitPattern> split_patterns();

}  // namespace hpcdl::io

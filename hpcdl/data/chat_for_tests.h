#pragma once
// A tokenizer of bytes and two special tokens, and a chat template that uses them.

#include <utility>
#include <vector>

#include "hpcdl/io/tokenizer.h"

namespace hpcdl::data {

/// Each message is "<|begin|>role\ncontent<|end|>\n"; the model is asked with "<|begin|>assistant\n".
inline constexpr const char* kChatTemplate =
    "{% for m in messages %}<|begin|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}";

/// One token for each byte, in the order of the alphabet, and three special tokens from 256 on.
inline io::Tokenizer chat_tokenizer() {
  io::BpeVocab vocab;
  const auto& alphabet = io::byte_level_alphabet();
  for (std::size_t i = 0; i < alphabet.size(); ++i) vocab.tokens.emplace_back(alphabet[i], static_cast<int>(i));
  std::vector<io::AddedToken> special;
  for (const char* content : {"<|endoftext|>", "<|begin|>", "<|end|>"}) {
    const auto id = static_cast<io::TokenId>(vocab.tokens.size());
    vocab.tokens.emplace_back(content, id);
    special.push_back({.content = content, .id = id});
  }
  return io::Tokenizer::from_bpe(std::move(vocab), std::move(special));
}

}  // namespace hpcdl::data

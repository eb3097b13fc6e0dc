#pragma once
// The tokenizer and the chat template inside of a GGUF file.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hpcdl/io/gguf/metadata.h"
#include "hpcdl/io/tokenizer.h"

namespace hpcdl::io {

/// The models "gpt2" (BPE of bytes) and "llama" (BPE of characters whose merges follow from scores, with tokens for bytes).
/// Throws Error that names what is not supported.
Tokenizer tokenizer_of(const GgufMetadata& metadata);

/// Every token that ends a text or a turn: those that the file names, and those that its vocabulary holds under a usual
/// name, such as <|im_end|>. Sorted, without repetition.
std::vector<TokenId> end_tokens_of(const GgufMetadata& metadata);

struct GgufChatTemplate {
  std::string source;
  std::vector<std::pair<std::string, std::string>> special_tokens = {};  // "bos_token", "<s>"
};
/// tokenizer.chat_template, or tokenizer.chat_template.NAME for a name other than "default"; none if there is none.
std::optional<GgufChatTemplate> chat_template_of(const GgufMetadata& metadata, std::string_view name);

}  // namespace hpcdl::io

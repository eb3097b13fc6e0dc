#pragma once
// Conversations to train on: JSON lines {"messages": [{"role": ..., "content": ...}, ...]}, as tokens of the model's
// chat template, and which of the tokens are learned.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "hpcdl/data/chat_mask.h"
#include "hpcdl/data/shards.h"
#include "hpcdl/io/chat_template.h"
#include "hpcdl/io/tokenizer.h"

namespace hpcdl::data {

/// A conversation.
struct ChatSample {
  std::vector<TokenId> tokens;
  std::vector<bool> learned;  // of each token: whether it is a target
};

struct ChatSet {
  std::vector<ChatSample> samples;
  std::int64_t cut = 0;      // conversations that were longer than the limit, without their ends
  std::int64_t dropped = 0;  // of these, conversations left out because no token to learn remained
  std::int64_t longest = 0;  // tokens of the longest one before it was cut
  std::int64_t learned = 0;  // tokens that are targets
};

/// The turns of the assistant begin where the template asks for an answer. Each part of the text between these places is
/// encoded by itself, so that a prompt has the tokens that it has when the model answers. Throws Error that begins with
/// `where` for messages that the template refuses, that have no answer, or whose text lacks one of their turns.
ChatSample encode_chat(const io::OrderedJson& conversation, const io::ChatTemplate& chat,
                       const io::Tokenizer& tokenizer, ChatMask mask, const std::string& where);

/// All conversations of the files, each cut after `limit` tokens. Throws Error that names file and line.
ChatSet read_chats(std::span<const std::filesystem::path> files, const io::ChatTemplate& chat,
                   const io::Tokenizer& tokenizer, ChatMask mask, std::int64_t limit);

/// Whether the first line of a .jsonl file holds messages.
bool holds_chats(const std::filesystem::path& file);

}  // namespace hpcdl::data

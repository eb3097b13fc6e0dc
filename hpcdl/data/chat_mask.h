#pragma once

namespace hpcdl::data {

/// The tokens of a conversation that are learned.
enum class ChatMask {
  assistant,   // those of all turns of the assistant
  completion,  // those of its last turn, which ends the conversation
  all,
};

}  // namespace hpcdl::data

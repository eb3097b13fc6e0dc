#pragma once
// What an engine does in one step, as a pure function of its queues: sequences are admitted in the order of their
// arrival while there are pages for all of their tokens, every sequence whose prompt is done continues by a token, and
// what the budget leaves processes prompts in chunks.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hpcdl::infer {

/// The largest number of tokens of a prompt that run through one program. A prompt is divided into chunks of 64, 32, ...
/// 1 tokens, so that no position is computed twice or padded.
inline constexpr std::int64_t kLargestChunk = 64;

/// The next chunk of a prompt of which `tokens` are left: the largest power of two that fits.
std::int64_t next_chunk(std::int64_t tokens);

struct Limits {
  std::int64_t sequences = 1;  // at a time
  std::int64_t budget = 512;   // tokens of a step; at least sequences + kLargestChunk
};

/// What the schedule depends on.
struct Queues {
  std::span<const std::int64_t> waiting;  // pages that each waiting sequence needs
  std::span<const std::int64_t> running;  // tokens of each prompt that have not been processed; 0: it continues
  std::int64_t free_pages = 0;
};

struct Schedule {
  struct Chunk {
    std::size_t sequence;  // its index: first the running ones, then those that are admitted
    std::int64_t tokens;
  };
  std::size_t admitted = 0;             // of the waiting sequences, the first ones
  std::vector<std::size_t> continuing;  // sequences that continue by one token
  std::vector<Chunk> chunks;            // in their order
  bool empty() const { return admitted == 0 && continuing.empty() && chunks.empty(); }
};

/// `prompts` are the lengths of the prompts of the waiting sequences.
Schedule schedule(const Queues& queues, std::span<const std::int64_t> prompts, const Limits& limits);

}  // namespace hpcdl::infer

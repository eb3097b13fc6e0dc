#pragma once
// What an engine does in one step, as a pure function of its queues. All texts continue by a token or, while their
// prompts last, by what the budget leaves, the most important ones first. Where pages run out, the least important ones
// are preempted: they lose their pages and wait. Others begin only where pages for all of their tokens are left.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hpcdl::infer {

struct Limits {
  std::int64_t sequences = 1;  // at a time
  std::int64_t budget = 512;   // tokens of a step; more than `sequences`
};

/// What the schedule depends on. Both queues have the most important text first.
struct Queues {
  struct Running {
    std::int64_t done = 0;                      // tokens whose keys are in its pages
    std::int64_t pending = 1;                   // known tokens after them, at least 1
    std::int64_t pages = 0;                     // that it holds
    std::int64_t own = 0;                       // of these, the ones that no other text holds
    std::int64_t later = 1;                     // that it may need for tokens which are not known yet
    std::int64_t most = std::int64_t{1} << 40;  // tokens of it in a step
  };
  struct Waiting {
    std::int64_t pending = 1;  // tokens whose keys are not there yet, at least 1
    std::int64_t pages = 0;    // for all its tokens and a further one, without those that running texts hold
    std::int64_t later = 1;
    std::int64_t most = std::int64_t{1} << 40;
  };
  std::span<const Running> running;
  std::span<const Waiting> waiting;
  std::int64_t available_pages = 0;
};

struct Schedule {
  struct Chunk {
    std::size_t sequence;  // its index: first the running ones, then those that are admitted
    std::int64_t tokens;
  };
  std::size_t preempted = 0;  // of the running sequences, the last ones
  std::size_t admitted = 0;   // of the waiting sequences, the first ones; none if any is preempted
  std::vector<Chunk> chunks;  // in their order
};

Schedule schedule(const Queues& queues, const Limits& limits);

}  // namespace hpcdl::infer

#pragma once
// What an engine does in one step, as a pure function of its queues. All texts continue by a token or, while their
// prompts last, by what the budget leaves, the most important ones first. Where pages run out, the least important ones
// are preempted: they lose their pages and wait. Others begin only where pages for all of their tokens are left.
//
// With deadlines, prompts get their tokens in the order of their slack, the time that they can still wait for the
// first token to be in time. Those that are late already come after these, so that they make no others late. Beside
// texts that continue, a step has only so many tokens of prompts that these get theirs in time.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "hpcdl/infer/step_cost.h"

namespace hpcdl::infer {

/// Seconds; 0: none.
struct Deadlines {
  double first_token = 0;     // from the arrival of a text
  double between_tokens = 0;  // of a text
  bool any() const { return first_token > 0 || between_tokens > 0; }
};

struct Limits {
  std::int64_t sequences = 1;  // at a time
  std::int64_t budget = 512;   // tokens of a step; more than `sequences`
  Deadlines deadlines = {};
  StepCost cost = {};  // for deadlines
};

inline constexpr double kNotDue = std::numeric_limits<double>::infinity();

/// A text without a token yet.
struct Prompt {
  std::int64_t pending = 1;  // tokens to process before its first one
  double due = kNotDue;      // the time of its first token
};
/// The order in which prompts get their tokens.
struct Urgency {
  std::vector<std::size_t> order;  // those that can be in time come first, then those that will be late
  std::size_t in_time = 0;         // how many can be
};
/// The most texts in time that is possible beside `singles` texts which continue: in the order of their due times, and
/// where one would be late, without the longest prompt until there (Moore, 1968). Texts that are due at -kNotDue come
/// before all others.
Urgency by_urgency(std::span<const Prompt> prompts, const Limits& limits, std::int64_t singles, double now);

/// What the schedule depends on. Both queues have the most important text first; with deadlines, `waiting` the most
/// urgent one.
struct Queues {
  struct Running {
    std::int64_t done = 0;                      // tokens whose keys are in its pages
    std::int64_t pending = 1;                   // known tokens after them, at least 1
    std::int64_t pages = 0;                     // that it holds
    std::int64_t own = 0;                       // of these, the ones that no other text holds
    std::int64_t later = 1;                     // that it may need for tokens which are not known yet
    std::int64_t most = std::int64_t{1} << 40;  // tokens of it in a step
    double due = kNotDue;                       // its first token; -kNotDue if it has one
  };
  struct Waiting {
    std::int64_t pending = 1;  // tokens whose keys are not there yet, at least 1
    std::int64_t pages = 0;    // for all its tokens and a further one, without those that running texts hold
    std::int64_t later = 1;
    std::int64_t most = std::int64_t{1} << 40;
    double due = kNotDue;
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

/// `now` and the times at which texts are due are seconds on one clock.
Schedule schedule(const Queues& queues, const Limits& limits, double now = 0);

}  // namespace hpcdl::infer

#pragma once
// Which keys a rank attends to, and when, if keys and values go around a ring of ranks, as pure functions.
//
// Each of p ranks has two chunks of n tokens of every sequence. In step s, rank r has the keys and values of rank r - s
// (modulo p): its own in step 0. Of the four pairs of a chunk of queries and a chunk of keys, it computes those that the
// masks leave.
//
// Source: Liu et al., "Ring attention with blockwise transformers for near-infinite context", 2023.

#include <cstdint>
#include <vector>

namespace hpcdl {

struct RingPlan {
  int ranks = 1;
  bool zigzag = true;  // rank r has chunks r and 2p - 1 - r, so that all compute equally much; false: 2r and 2r + 1
  std::int64_t tokens = 0;  // of a chunk
  std::int64_t window = 0;  // keys that a query sees, its own included; 0: all

  /// A chunk of queries with a chunk of keys.
  struct Pair {
    int query = 0, key = 0;   // chunks of the rank itself, and of the rank whose keys are there: 0 or 1
    std::int64_t rows = 0;    // only the first queries see any of the keys
    bool causal = false;      // false: all queries see all keys
    std::int64_t window = 0;  // as in Attention::Args
    std::int64_t ahead = 0;   // as in Attention::Args
    bool operator==(const Pair&) const = default;
  };

  /// The index in the sequence of a chunk that a rank has.
  int place(int rank, int chunk) const;
  /// The pairs of a rank in a step, for each chunk of queries from the last chunk of keys to the first: in step 0, the
  /// first pair of each has its own keys, and all of its queries.
  std::vector<Pair> pairs(int rank, int step) const;
  /// The last step in which any rank has a pair: keys and values go so far around the ring.
  int last_step() const;
};

}  // namespace hpcdl

#pragma once
// What run() and the policy know about an algorithm: docs/adding_a_collective.md shows how to add one.

#include <limits>

#include "hpcdl/comm/dispatch.h"

namespace hpcdl::comm::algo {

/// What an algorithm requires of a group.
enum class Needs : std::uint8_t {
  messages,    // nothing that some groups lack
  one_host,    // all ranks on one host, and memory that they share
  many_hosts,  // several hosts, some with several ranks, which share memory
  library,     // a transport with collectives of its own
};

/// What determines the bits of an element of a sum.
enum class Order : std::uint8_t {
  of_ranks,  // only the ranks
  of_place,  // also its position in the tensor, except with two ranks, whose sums have only one order
  unknown,
};

struct AlgorithmRow {
  /// Runs one collective of the group to its end. Sizes and dtypes have been checked.
  using Run = void (*)(const Call&, Ground&);

  Needs needs = Needs::messages;
  Order order = Order::of_ranks;
  int most_ranks_to_reduce = std::numeric_limits<int>::max();
  // Null for a collective that the algorithm does not have.
  Run all_reduce = nullptr, reduce_scatter = nullptr, all_gather = nullptr, all_to_all = nullptr, broadcast = nullptr,
      barrier = nullptr;

  /// Null for messages between two ranks, which belong to no algorithm.
  Run of(Collective what) const;
};

#define HPCDL_ROW(name) extern const AlgorithmRow name##_row;
HPCDL_COLLECTIVE_ALGORITHMS(HPCDL_ROW)
#undef HPCDL_ROW

const AlgorithmRow& row_of(Algorithm a);

}  // namespace hpcdl::comm::algo

#pragma once
// What run() and the policy know of an algorithm: docs/adding_a_collective.md shows how to add one.

#include <limits>

#include "hpcdl/comm/dispatch.h"

namespace hpcdl::comm::algo {

/// What a group must have for it.
enum class Needs : std::uint8_t {
  messages,    // no more than every group has
  one_host,    // all ranks on one host, and memory that they share
  many_hosts,  // several hosts, some with several ranks, which share memory
  library,     // a transport with collectives of its own
};

/// What decides the bits of an element of a sum.
enum class Order : std::uint8_t {
  of_ranks,  // the ranks alone
  of_place,  // also where in the tensor it stands, unless there are two ranks, whose sums have one order
  unknown,
};

struct AlgorithmRow {
  /// One collective of the group, until it is done. Sizes and dtypes have been checked.
  using Run = void (*)(const Call&, Ground&);

  Needs needs = Needs::messages;
  Order order = Order::of_ranks;
  int most_ranks_to_reduce = std::numeric_limits<int>::max();
  // Null where it does not do this one.
  Run all_reduce = nullptr, reduce_scatter = nullptr, all_gather = nullptr, all_to_all = nullptr, broadcast = nullptr,
      barrier = nullptr;

  /// Null for messages between two ranks, which are no algorithm's.
  Run of(Collective what) const;
};

#define HPCDL_ROW(name) extern const AlgorithmRow name##_row;
HPCDL_COLLECTIVE_ALGORITHMS(HPCDL_ROW)
#undef HPCDL_ROW

const AlgorithmRow& row_of(Algorithm a);

}  // namespace hpcdl::comm::algo

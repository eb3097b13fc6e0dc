#pragma once

#include <cstdint>
#include <string_view>

namespace hpcdl::comm {

/// How the values of all ranks are reduced. avg: the sum, divided once by the number of ranks (floats only).
enum class Reduce : std::uint8_t { sum, max, avg };

/// The operations of a group; also their names in counters, traces and verdicts.
enum class Collective : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,
  broadcast,
  send,
  receive,
  barrier,
  split
};

constexpr bool one_to_one(Collective c) { return c == Collective::send || c == Collective::receive; }

/// The list of all collective algorithms: enumerators, rows (comm/algo/algorithm.h) and names are made from this
/// list.
#define HPCDL_COLLECTIVE_ALGORITHMS(ONE) \
  ONE(ring) ONE(ring_blocking) ONE(halving) ONE(tree) ONE(pairwise) ONE(shared) ONE(star) ONE(hierarchical) ONE(native)

/// The algorithm. automatic: chosen by size and links from a measured table. native: the underlying library (MPI,
/// NCCL).
enum class Algorithm : std::uint8_t {
  automatic,
#define HPCDL_ENUMERATOR(name) name,
  HPCDL_COLLECTIVE_ALGORITHMS(HPCDL_ENUMERATOR)
#undef HPCDL_ENUMERATOR
};

constexpr std::string_view reduce_name(Reduce r) {
  constexpr std::string_view names[] = {"sum", "max", "avg"};
  return names[static_cast<int>(r)];
}
constexpr std::string_view collective_name(Collective c) {
  constexpr std::string_view names[] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast",
                                        "send",       "receive",        "barrier",    "split"};
  return names[static_cast<int>(c)];
}
/// "auto" and the names of the list.
inline constexpr std::string_view kAlgorithmNames[] = {"auto",
#define HPCDL_NAME(name) #name,
                                                       HPCDL_COLLECTIVE_ALGORITHMS(HPCDL_NAME)
#undef HPCDL_NAME
};
constexpr std::string_view algorithm_name(Algorithm a) { return kAlgorithmNames[static_cast<int>(a)]; }

}  // namespace hpcdl::comm

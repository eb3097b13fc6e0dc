#pragma once

#include <cstdint>
#include <string_view>

namespace hpcdl::comm {

/// How values of all ranks become one. avg: the sum, divided once by the number of ranks (floats alone).
enum class Reduce : std::uint8_t { sum, max, avg };

/// What a group can do; also what is named in counters, traces and verdicts.
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

/// Every collective algorithm, once: its enumerator, its row (comm/algo/algorithm.h) and its name are made from this
/// list.
#define HPCDL_COLLECTIVE_ALGORITHMS(ONE) \
  ONE(ring) ONE(ring_blocking) ONE(halving) ONE(tree) ONE(pairwise) ONE(shared) ONE(star) ONE(hierarchical) ONE(native)

/// How it is done. automatic: by size and links, from a measured table. native: the library below (MPI, NCCL).
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
/// "auto" and those of the list.
inline constexpr std::string_view kAlgorithmNames[] = {"auto",
#define HPCDL_NAME(name) #name,
                                                       HPCDL_COLLECTIVE_ALGORITHMS(HPCDL_NAME)
#undef HPCDL_NAME
};
constexpr std::string_view algorithm_name(Algorithm a) { return kAlgorithmNames[static_cast<int>(a)]; }

}  // namespace hpcdl::comm

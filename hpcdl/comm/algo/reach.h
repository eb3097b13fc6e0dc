#pragma once
// How ranks of one host come at tensors in each other's private memory.

#include <chrono>

#include "hpcdl/comm/algo/phases.h"

namespace hpcdl::comm::algo {

enum class Reach : std::uint8_t {
  staging,    // only through memory that they share
  reading,    // processes of which the system lets each read the others (process_vm_readv)
  addresses,  // threads of one process
};

/// The same on all ranks; collective at a group's first call, which measures whether reading is faster than staging,
/// and remembered in its shared memory.
Reach reach(Phases& p, Ground& g);

/// Whether the system lets every rank read every other. Collective, as the next: what reach() says from now on.
bool can_read(Phases& p, Ground& g);
void remember(Ground& g, Reach r);

/// n bytes of another rank, at an address of its process. False where the system refuses, or the rank is gone.
bool read_from(Ground& g, int index, std::byte* to, std::uint64_t address, std::int64_t n);

/// What is known of sums by reading, of this rank: 0 nothing yet, 1 staging is faster or the only way, 2 reading is.
Shared::Flag& sums_flag(Ground& g);

/// The sum of what each rank gives. Collective.
std::int64_t sum_of_all(Phases& p, std::int64_t mine);

template <class F> std::int64_t nanoseconds(F&& f) {
  const auto begin = Clock::now();
  f();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
}

}  // namespace hpcdl::comm::algo

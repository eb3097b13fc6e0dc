#pragma once
// How ranks of one host come at tensors in each other's private memory.

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

/// Whether sums may be read. The same on all ranks; found out at the first question, which is collective.
bool may_read_sums(Ground& g, Phases& p);
/// From now on.
void may_read_sums(Ground& g, bool may);

/// n bytes of another rank, at an address of its process. False where the system refuses, or the rank is gone.
bool read_from(Ground& g, int index, std::byte* to, std::uint64_t address, std::int64_t n);

}  // namespace hpcdl::comm::algo

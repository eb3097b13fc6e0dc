#pragma once
// How ranks of one host access tensors in each other's private memory.

#include "hpcdl/comm/algo/phases.h"

namespace hpcdl::comm::algo {

enum class Reach : std::uint8_t {
  staging,    // only through memory that they share
  reading,    // processes that the system lets read each other (process_vm_readv)
  addresses,  // threads of one process
};

/// The same on all ranks. The first call of a group is collective: it measures whether reading is faster than staging,
/// and stores the result in its shared memory.
Reach reach(Phases& p, Ground& g);

/// Whether the system lets every rank read every other. Collective, like the next: sets what reach() returns from now
/// on.
bool can_read(Phases& p, Ground& g);
void remember(Ground& g, Reach r);

/// Whether sums may use reading. The same on all ranks; measured by the first call, which is collective.
bool may_read_sums(Ground& g, Phases& p);
/// Sets it from now on.
void may_read_sums(Ground& g, bool may);

/// Reads n bytes of another rank, at an address of its process. False if the system refuses, or the rank is gone.
bool read_from(Ground& g, int index, std::byte* to, std::uint64_t address, std::int64_t n);

}  // namespace hpcdl::comm::algo

#pragma once
// Recursive halving and doubling: log2(N) exchanges with ranks N/2, N/4, ..., 1 apart, each of half as much as the one
// before, and back (Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005).
// Where N is no power of two, the first 2 (N - power) ranks work in pairs, of which one takes part. Every element is
// summed by the same tree over ranks: its bits do not depend on where it stands.

#include "hpcdl/comm/algo/pieces.h"

namespace hpcdl::comm::algo {

void halving_all_reduce(Peers& peers, Scratch& scratch, const Reduction& r, std::byte* x, std::int64_t n);
/// The same steps without a tensor.
void halving_barrier(Peers& peers);

}  // namespace hpcdl::comm::algo

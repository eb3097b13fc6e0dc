#pragma once
// Recursive halving and doubling: log2(N) exchanges with ranks N/2, N/4, ..., 1 apart, each of half the size of the one
// before, and back (Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005).
// If N is not a power of two, the first 2 (N - power) ranks form pairs, and one rank of each pair takes part. Every
// element is summed by the same tree over ranks: its bits do not depend on its position.

#include "hpcdl/comm/algo/pieces.h"

namespace hpcdl::comm::algo {

void halving_all_reduce(Peers& peers, Scratch& scratch, const Reduction& r, std::byte* x, std::int64_t n);
/// A barrier: the same steps without a tensor.
void halving_barrier(Peers& peers);

}  // namespace hpcdl::comm::algo

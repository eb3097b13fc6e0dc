#pragma once
// Everything to rank 0 and back, in two messages on each link: for tensors so short that only the number of steps
// counts. Summed in the order of ranks, 16-bit floats in f32.

#include "hpcdl/comm/algo/pieces.h"

namespace hpcdl::comm::algo {

void star_all_reduce(Peers& peers, Scratch& scratch, const Reduction& r, std::byte* x, std::int64_t n);

}  // namespace hpcdl::comm::algo

#pragma once
// N-1 steps; in step s every rank sends to the rank s behind it and receives from the rank s before it, so that every
// link carries one message at a time. Each part goes straight to where it belongs.

#include "hpcdl/comm/algo/pieces.h"

namespace hpcdl::comm::algo {

/// `bytes`: of one part.
void pairwise_all_to_all(Peers& peers, std::byte* out, const std::byte* in, std::int64_t bytes);
void pairwise_all_gather(Peers& peers, std::byte* out, std::int64_t bytes);
/// `n`: elements of one part. Summed in the order of ranks, 16-bit floats in f32.
void pairwise_reduce_scatter(Peers& peers, Scratch& scratch, const Reduction& r, std::byte* out, const std::byte* in,
                             std::int64_t n);

}  // namespace hpcdl::comm::algo

#pragma once
// N chunks, each of which travels once around the ring of ranks and grows into the sum (N-1 steps), and once more as
// the result (N-1 steps): no link carries more than 2 (N-1) / N of the tensor (Patarasuk, Yuan, "Bandwidth optimal
// all-reduce algorithms for clusters of workstations", 2009). Chunk c is summed in the order of ranks c+1, c+2, ..., c:
// the bits of an element depend on the chunk it is in, unless there are only two ranks.

#include "hpcdl/comm/algo/pieces.h"

namespace hpcdl::comm::algo {

/// Chunks are sent in segments that do not wait for each other: while one is combined, the next arrives and the one
/// before is sent.
void ring_all_reduce(Peers& peers, Scratch& scratch, const Reduction& r, std::byte* x, std::int64_t n);

}  // namespace hpcdl::comm::algo

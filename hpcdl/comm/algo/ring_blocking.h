#pragma once
// The ring (ring.h) in its simplest form: one blocking send and one blocking receive in every step, whole chunks. Even
// ranks send first, odd ranks receive first, so that no message needs a buffer to get away: the reference for the other
// forms.

#include "hpcdl/comm/algo/pieces.h"

namespace hpcdl::comm::algo {

void ring_blocking_all_reduce(Peers& peers, Scratch& scratch, const Reduction& r, std::byte* x, std::int64_t n);
/// As in ring.h.
void ring_blocking_reduce_scatter(Peers& peers, Scratch& scratch, const Reduction& r, std::byte* out,
                                  const std::byte* in, std::int64_t n);
void ring_blocking_all_gather(Peers& peers, std::byte* x, std::int64_t n, std::int64_t width);

}  // namespace hpcdl::comm::algo

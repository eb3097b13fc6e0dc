#pragma once
// Collectives of the ranks of one host through memory that they share. If the tensors lie in a window, every rank
// reduces its slice of all tensors and stores it to all of them: one pass, no copies. Tensors in private memory go
// through staging memory; long ones of threads are accessed in place, and data that only move between processes are
// read directly if the system allows it. Everything is summed in the order of ranks, 16-bit floats in
// f32.

#include "hpcdl/comm/algo/pieces.h"

namespace hpcdl::comm::algo {

/// Parts of `hierarchical`. Writes the sum of the ranks of this host, not averaged, into x on the first of them.
void shared_reduce_to_first(const Reduction& r, Ground& g, std::byte* x, std::int64_t n);
/// `root`: index among the ranks of this host.
void shared_copy_from(Ground& g, int root, std::byte* x, std::int64_t bytes);

}  // namespace hpcdl::comm::algo

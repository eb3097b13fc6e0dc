#pragma once
// All-reduce over several hosts with several ranks each: summed inside every host through shared memory, between the
// first ranks of all hosts by messages, and copied inside every host: each host sends the tensor once, not once for
// each of its ranks. Between two hosts: the pipelined ring. Between more: halving where their number is a power of two,
// else a chain, so that an element's bits never depend on where it stands.

#include "hpcdl/comm/algo/pieces.h"

namespace hpcdl::comm::algo {

void hierarchical_all_reduce(const Call& call, Ground& g);

}  // namespace hpcdl::comm::algo

#pragma once
// Reduce towards rank 0 and broadcast from it along a tree of ranks, segment by segment, both at once. Every element is
// summed by the same tree over ranks: its bits do not depend on its position.

#include "hpcdl/comm/algo/pieces.h"

namespace hpcdl::comm::algo {

enum class TreeShape : std::uint8_t {
  binomial,  // log2(N) deep: for short tensors
  chain,     // rank r's only child is r + 1: no rank sends more than twice the tensor, whatever N: for long ones
};

void tree_all_reduce(Peers& peers, Scratch& scratch, const Reduction& r, std::byte* x, std::int64_t n,
                     TreeShape shape = TreeShape::binomial);

}  // namespace hpcdl::comm::algo

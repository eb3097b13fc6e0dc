// N-1 steps; in step s every rank sends to the rank s after it and receives from the rank s before it, so that every
// link carries one message at a time. Each part goes directly to its destination. Sums are taken in the order of ranks,
// 16-bit floats in f32.

#include "hpcdl/comm/algo/algorithm.h"
#include "hpcdl/comm/algo/pieces.h"

namespace hpcdl::comm::algo {

namespace {

/// going(to) and coming(from): the bytes to and from a rank.
template <class Going, class Coming> void steps(Peers& peers, Going going, Coming coming) {
  const int rank = peers.rank(), size = peers.size();
  for (int s = 1; s < size; ++s) {
    const int to = (rank + s) % size, from = (rank + size - s) % size;
    exchange(peers, to, going(to), from, coming(from));
  }
}

void pairwise_all_to_all(const Call& c, Ground& g) {
  const std::int64_t bytes = c.bytes();
  const auto size = static_cast<std::size_t>(bytes);
  place_own_part(c, g, c.in + g.peers.rank() * bytes);
  steps(
      g.peers, [&](int to) { return ConstBytes(c.in + to * bytes, size); },
      [&](int from) { return Bytes(c.out + from * bytes, size); });
}

void pairwise_all_gather(const Call& c, Ground& g) {
  const std::int64_t bytes = c.bytes();
  const auto size = static_cast<std::size_t>(bytes);
  place_own_part(c, g, c.in);
  steps(
      g.peers, [&](int) { return ConstBytes(c.out + g.peers.rank() * bytes, size); },
      [&](int from) { return Bytes(c.out + from * bytes, size); });
}

void pairwise_reduce_scatter(const Call& c, Ground& g) {
  Peers& peers = g.peers;
  const std::int64_t bytes = c.bytes();
  const auto size = static_cast<std::size_t>(bytes);
  std::byte* room = g.scratch.bytes(bytes * peers.size());
  std::vector<const std::byte*> parts;
  for (int k = 0; k < peers.size(); ++k) parts.push_back(k == peers.rank() ? c.in + k * bytes : room + k * bytes);
  steps(
      peers, [&](int to) { return ConstBytes(c.in + to * bytes, size); },
      [&](int from) { return Bytes(room + from * bytes, size); });
  combine_all(reduction_of(c, g), std::span(&c.out, 1), parts, c.count);
}

}  // namespace

const AlgorithmRow pairwise_row{.most_ranks_to_reduce = kMostTogether,
                                .reduce_scatter = pairwise_reduce_scatter,
                                .all_gather = pairwise_all_gather,
                                .all_to_all = pairwise_all_to_all};

}  // namespace hpcdl::comm::algo

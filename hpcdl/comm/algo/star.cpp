// Sends everything to rank 0 and back, in two messages on each link: for tensors so short that only the number of steps
// counts. Summed in the order of ranks, 16-bit floats in f32.

#include "hpcdl/comm/algo/algorithm.h"
#include "hpcdl/comm/algo/pieces.h"

namespace hpcdl::comm::algo {

namespace {

void star_all_reduce(const Call& c, Ground& g) {
  Peers& peers = g.peers;
  std::byte* const x = c.out;
  const std::int64_t bytes = c.bytes();
  const Bytes own(x, static_cast<std::size_t>(bytes));
  if (peers.rank() != 0) {
    Messages m(peers);
    m.send(0, own);
    m.wait();
    m.receive(0, own);
    return m.wait();
  }
  std::byte* room = g.scratch.bytes(bytes * (peers.size() - 1));
  std::vector<const std::byte*> in{x};
  Messages received(peers), sent(peers);
  for (int k = 1; k < peers.size(); ++k) {
    in.push_back(room + (k - 1) * bytes);
    received.receive(k, {room + (k - 1) * bytes, own.size()});
  }
  received.wait();
  combine_all(reduction_of(c, g), std::span(&x, 1), in, c.count);
  for (int k = 1; k < peers.size(); ++k) sent.send(k, own);
  sent.wait();
}

}  // namespace

const AlgorithmRow star_row{.most_ranks_to_reduce = kMostTogether, .all_reduce = star_all_reduce};

}  // namespace hpcdl::comm::algo

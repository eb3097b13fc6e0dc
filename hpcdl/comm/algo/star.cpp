#include "hpcdl/comm/algo/star.h"

namespace hpcdl::comm::algo {

void star_all_reduce(Peers& peers, Scratch& scratch, const Reduction& r, std::byte* x, std::int64_t n) {
  const std::int64_t bytes = r.bytes(n);
  const Bytes own(x, static_cast<std::size_t>(bytes));
  if (peers.rank() != 0) {
    Messages m(peers);
    m.send(0, own);
    m.wait();
    m.receive(0, own);
    return m.wait();
  }
  std::byte* room = scratch.bytes(bytes * (peers.size() - 1));
  std::vector<const std::byte*> in{x};
  Messages received(peers), sent(peers);
  for (int k = 1; k < peers.size(); ++k) {
    in.push_back(room + (k - 1) * bytes);
    received.receive(k, {room + (k - 1) * bytes, own.size()});
  }
  received.wait();
  combine_all(r, std::span(&x, 1), in, n);
  for (int k = 1; k < peers.size(); ++k) sent.send(k, own);
  sent.wait();
}

}  // namespace hpcdl::comm::algo

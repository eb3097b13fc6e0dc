#include "hpcdl/comm/algo/ring_blocking.h"

#include <utility>

namespace hpcdl::comm::algo {

namespace {

/// With an odd number of ranks the last and the first both send first; the first gets rid of its chunk, as rank 1
/// receives, and then receives.
void step(Peers& peers, ConstBytes out, Bytes in) {
  const int next = (peers.rank() + 1) % peers.size(), previous = (peers.rank() + peers.size() - 1) % peers.size();
  const auto send_all = [&] {
    Messages m(peers);
    m.send(next, out);
    m.wait();
  };
  if (peers.rank() % 2 == 0) send_all();
  Messages m(peers);
  m.receive(previous, in);
  m.wait();
  if (peers.rank() % 2 == 1) send_all();
}

}  // namespace

void ring_blocking_reduce_scatter(Peers& peers, Scratch& scratch, const Reduction& r, std::byte* out,
                                  const std::byte* in, std::int64_t n) {
  const int size = peers.size(), rank = peers.rank();
  const Elements source{const_cast<std::byte*>(in), r.bytes(1)};
  const std::int64_t room = (n / size + 1) * source.width;
  std::byte *got = scratch.bytes(2 * room), *sum = got + room;
  const bool own_first = rank < (rank + size - 1) % size;
  for (int s = 0; s + 1 < size; ++s) {
    const Range going = part_of(n, size, (rank + 2 * size - 1 - s) % size),
                coming = part_of(n, size, (rank + 2 * size - 2 - s) % size);
    const Bytes at(got, source[coming].size());
    step(peers, s == 0 ? ConstBytes(source[going]) : ConstBytes(sum, source[going].size()), at);
    const bool last = s + 2 == size;
    const std::byte* mine = source[coming].data();
    combine(r, last ? Part::last : Part::inner, last ? out : got, own_first ? mine : got, own_first ? got : mine,
            coming.count());
    std::swap(got, sum);
  }
}

void ring_blocking_all_gather(Peers& peers, std::byte* x, std::int64_t n, std::int64_t width) {
  const int size = peers.size(), rank = peers.rank();
  const Elements all{x, width};
  for (int s = 0; s + 1 < size; ++s)
    step(peers, all[part_of(n, size, (rank + size - s) % size)],
         all[part_of(n, size, (rank + 2 * size - 1 - s) % size)]);
}

void ring_blocking_all_reduce(Peers& peers, Scratch& scratch, const Reduction& r, std::byte* x, std::int64_t n) {
  const std::int64_t width = r.bytes(1);
  ring_blocking_reduce_scatter(peers, scratch, r, x + part_of(n, peers.size(), peers.rank()).begin * width, x, n);
  ring_blocking_all_gather(peers, x, n, width);
}

}  // namespace hpcdl::comm::algo

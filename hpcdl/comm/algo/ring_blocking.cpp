// The ring (ring.h) in its simplest form: one blocking send and one blocking receive in every step, whole chunks. Even
// ranks send first, odd ranks receive first, so that no message needs a buffer: the reference for the other
// forms.

#include <utility>

#include "hpcdl/comm/algo/algorithm.h"
#include "hpcdl/comm/algo/pieces.h"

namespace hpcdl::comm::algo {

namespace {

/// With an odd number of ranks the last and the first both send first; the first can send its chunk, because rank 1
/// receives first, and then it receives.
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

/// As in ring.h.
void reduce_chunk(Ground& g, const Reduction& r, std::byte* out, const std::byte* in, std::int64_t n) {
  Peers& peers = g.peers;
  const int size = peers.size(), rank = peers.rank();
  const Elements source{const_cast<std::byte*>(in), r.bytes(1)};
  const std::int64_t room = (n / size + 1) * source.width;
  std::byte *got = g.scratch.bytes(2 * room), *sum = got + room;
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

void gather_chunks(Peers& peers, std::byte* x, std::int64_t n, std::int64_t width) {
  const int size = peers.size(), rank = peers.rank();
  const Elements all{x, width};
  for (int s = 0; s + 1 < size; ++s)
    step(peers, all[part_of(n, size, (rank + size - s) % size)],
         all[part_of(n, size, (rank + 2 * size - 1 - s) % size)]);
}

void ring_blocking_all_reduce(const Call& c, Ground& g) {
  const Reduction r = reduction_of(c, g);
  const Range own = part_of(c.count, g.peers.size(), g.peers.rank());
  reduce_chunk(g, r, c.out + r.bytes(own.begin), c.out, c.count);
  gather_chunks(g.peers, c.out, c.count, r.bytes(1));
}

void ring_blocking_reduce_scatter(const Call& c, Ground& g) {
  reduce_chunk(g, reduction_of(c, g), c.out, c.in, c.count * g.peers.size());
}

void ring_blocking_all_gather(const Call& c, Ground& g) {
  place_own_part(c, g, c.in);
  gather_chunks(g.peers, c.out, c.bytes() * g.peers.size(), 1);
}

}  // namespace

const AlgorithmRow ring_blocking_row{.order = Order::of_place,
                                     .all_reduce = ring_blocking_all_reduce,
                                     .reduce_scatter = ring_blocking_reduce_scatter,
                                     .all_gather = ring_blocking_all_gather};

}  // namespace hpcdl::comm::algo

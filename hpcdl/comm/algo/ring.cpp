#include "hpcdl/comm/algo/ring.h"

namespace hpcdl::comm::algo {

namespace {

/// Segments that a rank has room for beyond the one it combines.
constexpr std::int64_t kAhead = 4;

/// The messages of N-1 steps in the order in which every rank sends them: item = step * segments + segment.
struct Schedule {
  int rank, size;
  std::int64_t n, width;
  std::int64_t segments = segments_of((n + size - 1) / size * width);

  std::int64_t items() const { return segments * (size - 1); }
  int next() const { return (rank + 1) % size; }
  int previous() const { return (rank + size - 1) % size; }
  /// The part of a chunk that a message holds; the rank's own chunk and those before it are counted by `back`.
  Range range(std::int64_t item, int back) const {
    const int chunk = static_cast<int>((rank + 2 * size - back - item / segments) % size);
    const Range c = part_of(n, size, chunk);
    const std::int64_t g = item % segments, count = c.count();
    return {c.begin + count * g / segments, c.begin + count * (g + 1) / segments};
  }
};

}  // namespace

void ring_reduce_scatter(Peers& peers, Scratch& scratch, const Reduction& r, std::byte* out, const std::byte* in, std::int64_t n) {
  const Schedule ring{peers.rank(), peers.size(), n, r.bytes(1)};
  const std::int64_t slots = std::min(ring.items(), ring.segments + kAhead), last_step = ring.items() - ring.segments;
  const std::int64_t room = ((n + ring.size - 1) / ring.size + ring.segments) / ring.segments * ring.width;
  std::byte* memory = scratch.bytes(slots * room);
  const Elements source{const_cast<std::byte*>(in), ring.width};
  const auto arriving = [&](std::int64_t item) { return ring.range(item, 2); };
  const auto slot = [&](std::int64_t item) { return Bytes(memory + item % slots * room, source[arriving(item)].size()); };
  const std::int64_t own = part_of(n, ring.size, ring.rank).begin;
  const bool own_first = ring.rank < ring.previous();

  Messages sent(peers), received(peers);
  for (std::int64_t g = 0; g < ring.segments; ++g) sent.send(ring.next(), source[ring.range(g, 1)]);
  std::int64_t posted = 0;
  for (std::int64_t item = 0; item < ring.items(); ++item) {
    for (; posted < ring.items() && posted < item + std::min(slots, kAhead); ++posted) {
      // What was in the slot before has gone on to the next rank.
      if (posted >= slots) sent.wait(static_cast<std::size_t>(posted - slots + ring.segments + 1));
      received.receive(ring.previous(), slot(posted));
    }
    received.wait(static_cast<std::size_t>(item + 1));
    const Range at = arriving(item);
    std::byte *got = slot(item).data(), *mine = source[at].data();
    const bool last = item >= last_step;
    combine(r, last ? Part::last : Part::inner, last ? out + (at.begin - own) * ring.width : got, own_first ? mine : got, own_first ? got : mine, at.count());
    if (!last) sent.send(ring.next(), slot(item));
  }
  sent.wait();
}

void ring_all_gather(Peers& peers, std::byte* x, std::int64_t n, std::int64_t width) {
  const Schedule ring{peers.rank(), peers.size(), n, width};
  const Elements all{x, width};
  Messages sent(peers), received(peers);
  for (std::int64_t g = 0; g < ring.segments; ++g) sent.send(ring.next(), all[ring.range(g, 0)]);
  std::int64_t posted = 0;
  for (std::int64_t item = 0; item < ring.items(); ++item) {
    for (; posted < ring.items() && posted < item + ring.segments + kAhead; ++posted) received.receive(ring.previous(), all[ring.range(posted, 1)]);
    received.wait(static_cast<std::size_t>(item + 1));
    if (item < ring.items() - ring.segments) sent.send(ring.next(), all[ring.range(item, 1)]);
  }
  sent.wait();
}

void ring_all_reduce(Peers& peers, Scratch& scratch, const Reduction& r, std::byte* x, std::int64_t n) {
  const std::int64_t width = r.bytes(1);
  ring_reduce_scatter(peers, scratch, r, x + part_of(n, peers.size(), peers.rank()).begin * width, x, n);
  ring_all_gather(peers, x, n, width);
}

}  // namespace hpcdl::comm::algo

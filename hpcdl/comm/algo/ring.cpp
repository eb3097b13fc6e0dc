#include "hpcdl/comm/algo/ring.h"

#include "hpcdl/comm/algo/algorithm.h"

namespace hpcdl::comm::algo {

namespace {

/// Segments that fit into the buffer of a rank besides the one that it combines.
constexpr std::int64_t kAhead = 4;

/// The messages of N-1 steps in the order in which every rank sends them: item = step * segments + segment.
struct Schedule {
  int rank, size;
  std::int64_t n, width;
  std::int64_t segments = segments_of((n + size - 1) / size * width);

  std::int64_t items() const { return segments * (size - 1); }
  int next() const { return (rank + 1) % size; }
  int previous() const { return (rank + size - 1) % size; }
  /// The part of a chunk that a message holds; `back` counts chunks back from the rank's own.
  Range range(std::int64_t item, int back) const {
    const int chunk = static_cast<int>((rank + 2 * size - back - item / segments) % size);
    const Range c = part_of(n, size, chunk);
    const std::int64_t g = item % segments, count = c.count();
    return {c.begin + count * g / segments, c.begin + count * (g + 1) / segments};
  }
};

/// The messages of one rank around the ring, in one order for both halves of an all-reduce.
class Ring {
 public:
  Ring(Peers& peers, std::int64_t n, std::int64_t width)
      : ring_{peers.rank(), peers.size(), n, width}, sent_(peers), received_(peers) {}

  /// summed(g): segment g of this rank's chunk is in `out`.
  template <class F>
  void reduce_scatter(Scratch& scratch, const Reduction& r, std::byte* out, const std::byte* in, F&& summed) {
    const std::int64_t slots = std::min(ring_.items(), ring_.segments + kAhead),
                       last_step = ring_.items() - ring_.segments;
    const std::int64_t room = ((ring_.n + ring_.size - 1) / ring_.size + ring_.segments) / ring_.segments * ring_.width;
    std::byte* memory = scratch.bytes(slots * room);
    const Elements source{const_cast<std::byte*>(in), ring_.width};
    const auto arriving = [&](std::int64_t item) { return ring_.range(item, 2); };
    const auto slot = [&](std::int64_t item) {
      return Bytes(memory + item % slots * room, source[arriving(item)].size());
    };
    const std::int64_t own = part_of(ring_.n, ring_.size, ring_.rank).begin;
    const bool own_first = ring_.rank < ring_.previous();

    for (std::int64_t g = 0; g < ring_.segments; ++g) sent_.send(ring_.next(), source[ring_.range(g, 1)]);
    std::int64_t posted = 0;
    for (std::int64_t item = 0; item < ring_.items(); ++item) {
      // Posted as early as there is room: a long message comes only after its receiver has asked for it, which takes a
      // round trip.
      for (; posted < ring_.items() && posted < item + std::max(kAhead, ring_.segments); ++posted) {
        // The previous contents of the slot have been sent to the next rank.
        if (posted >= slots) sent_.wait(static_cast<std::size_t>(posted - slots + ring_.segments + 1));
        received_.receive(ring_.previous(), slot(posted));
      }
      received_.wait(static_cast<std::size_t>(item + 1));
      const Range at = arriving(item);
      std::byte *got = slot(item).data(), *mine = source[at].data();
      const bool last = item >= last_step;
      combine(r, last ? Part::last : Part::inner, last ? out + (at.begin - own) * ring_.width : got,
              own_first ? mine : got, own_first ? got : mine, at.count());
      if (last) summed(item - last_step);
      else sent_.send(ring_.next(), slot(item));
    }
  }

  /// Sends segment g of this rank's chunk, and begins to receive the one of the previous rank.
  void begin_gather(std::byte* x, std::int64_t g) {
    const Elements all{x, ring_.width};
    sent_.send(ring_.next(), all[ring_.range(g, 0)]);
    received_.receive(ring_.previous(), all[ring_.range(g, 1)]);
  }
  /// The same for an all-reduce: received segments go to the place from which the first ones were sent.
  void turn_to_gather(std::byte* x, std::int64_t g) {
    sent_.wait(static_cast<std::size_t>(g + 1));
    begin_gather(x, g);
  }
  /// To be called after every segment has begun.
  void gather(std::byte* x) {
    const Elements all{x, ring_.width};
    const auto before = static_cast<std::int64_t>(received_.started()) - ring_.segments;
    std::int64_t posted = ring_.segments;
    for (std::int64_t item = 0; item < ring_.items(); ++item) {
      for (; posted < ring_.items() && posted < item + ring_.segments + kAhead; ++posted)
        received_.receive(ring_.previous(), all[ring_.range(posted, 1)]);
      received_.wait(static_cast<std::size_t>(before + item + 1));
      if (item < ring_.items() - ring_.segments) sent_.send(ring_.next(), all[ring_.range(item, 1)]);
    }
  }
  void finish() { sent_.wait(); }
  std::int64_t segments() const { return ring_.segments; }

 private:
  Schedule ring_;
  Messages sent_, received_;
};

void ring_reduce_scatter(const Call& c, Ground& g) {
  const Reduction r = reduction_of(c, g);
  Ring ring(g.peers, c.count * g.peers.size(), r.bytes(1));
  ring.reduce_scatter(g.scratch, r, c.out, c.in, [](std::int64_t) {});
  ring.finish();
}

void ring_all_gather(const Call& c, Ground& g) {
  place_own_part(c, g, c.in);
  Ring ring(g.peers, c.bytes() * g.peers.size(), 1);
  for (std::int64_t k = 0; k < ring.segments(); ++k) ring.begin_gather(c.out, k);
  ring.gather(c.out);
  ring.finish();
}

}  // namespace

/// The second half of a segment begins when its first half is done, so that no link is idle in between.
void ring_all_reduce(Peers& peers, Scratch& scratch, const Reduction& r, std::byte* x, std::int64_t n) {
  Ring ring(peers, n, r.bytes(1));
  ring.reduce_scatter(scratch, r, x + part_of(n, peers.size(), peers.rank()).begin * r.bytes(1), x,
                      [&](std::int64_t g) { ring.turn_to_gather(x, g); });
  ring.gather(x);
  ring.finish();
}

const AlgorithmRow ring_row{
    .order = Order::of_place,
    .all_reduce = [](const Call& c,
                     Ground& g) { ring_all_reduce(g.peers, g.scratch, reduction_of(c, g), c.out, c.count); },
    .reduce_scatter = ring_reduce_scatter,
    .all_gather = ring_all_gather};

}  // namespace hpcdl::comm::algo

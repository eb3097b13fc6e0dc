#include "hpcdl/comm/algo/halving.h"

#include <bit>
#include <utility>

#include "hpcdl/comm/algo/algorithm.h"

namespace hpcdl::comm::algo {

namespace {

/// Bytes up to which the number of steps costs more than their contents.
constexpr std::int64_t kShort = 8 << 10;

/// Which ranks take part, and their chunks.
struct Places {
  int size;
  int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(size)));
  int pairs = size - power;

  bool stands_back(int rank) const { return rank < 2 * pairs && rank % 2 == 1; }  // rank - 1 does the work of this rank
  bool has_partner(int rank) const { return rank < 2 * pairs && rank % 2 == 0; }
  int place(int rank) const { return rank < 2 * pairs ? rank / 2 : rank - pairs; }
  int rank(int place) const { return place < pairs ? 2 * place : place + pairs; }  // of `power`: size
};

/// The view of one rank of n elements that are cut into one chunk for each rank.
struct Halving {
  Peers& peers;
  std::int64_t n, width;
  Places places{peers.size()};
  int rank = peers.rank(), place = places.place(rank);

  Range chunk(int of) const { return part_of(n, places.size, of); }
  /// The block of `count` places that contains `of`.
  Range block(int of, int count) const {
    const int first = of / count * count;
    return {chunk(places.rank(first)).begin,
            first + count == places.power ? n : chunk(places.rank(first + count)).begin};
  }

  /// x becomes the sum in block(place, 1) on the ranks that take part, and is undefined elsewhere. `from`: the input, x
  /// or other memory. `room`: scratch of the size of x.
  void reduce(std::byte* room, const Reduction& r, std::byte* x, const std::byte* from) const {
    if (places.stands_back(rank)) return send(peers, rank - 1, {from, static_cast<std::size_t>(n * width)});
    const Elements sum{x, width};
    const Elements got{room, width};
    const auto add = [&](int peer, Range going, Range coming, const std::byte* own, Part part) {
      const Elements mine{const_cast<std::byte*>(own), width};
      exchange(peers, peer, mine[going], peer, got[coming], [&](std::int64_t begin, std::int64_t end) {
        std::byte *a = mine[coming].data() + begin, *b = got[coming].data() + begin;
        if (rank > peer) std::swap(a, b);
        combine(r, part, sum[coming].data() + begin, a, b, (end - begin) / width);
      });
    };
    if (places.has_partner(rank)) add(rank + 1, {}, {0, n}, from, Part::inner), from = x;
    for (int d = places.power / 2; d >= 1; d /= 2) {
      add(places.rank(place ^ d), block(place ^ d, d), block(place, d), from, d == 1 ? Part::last : Part::inner);
      from = x;
    }
  }

  /// The same sums in half the number of steps, each with whole tensors.
  void reduce_everywhere(std::byte* room, const Reduction& r, std::byte* x) const {
    const Elements all{x, width}, got{room, width};
    const Range whole{0, n};
    if (places.stands_back(rank)) return send(peers, rank - 1, all[whole]), receive(peers, rank - 1, all[whole]);
    const auto add = [&](int peer, Part part) {
      combine(r, part, x, rank < peer ? x : room, rank < peer ? room : x, n);
    };
    if (places.has_partner(rank)) receive(peers, rank + 1, got[whole]), add(rank + 1, Part::inner);
    for (int d = places.power / 2; d >= 1; d /= 2) {
      const int peer = places.rank(place ^ d);
      exchange(peers, peer, all[whole], peer, got[whole]);
      add(peer, d == 1 ? Part::last : Part::inner);
    }
    if (places.has_partner(rank)) send(peers, rank + 1, all[whole]);
  }

  /// Distributes block(place, 1) of every rank that takes part, until all ranks have all of x.
  void gather(std::byte* x) const {
    const Elements all{x, width};
    if (places.stands_back(rank)) return receive(peers, rank - 1, all[{0, n}]);
    for (int d = 1; d < places.power; d *= 2) {
      const int peer = places.rank(place ^ d);
      exchange(peers, peer, all[block(place, d)], peer, all[block(place ^ d, d)]);
    }
    if (places.has_partner(rank)) send(peers, rank + 1, all[{0, n}]);
  }
};

void halving_reduce_scatter(const Call& c, Ground& g) {
  Peers& peers = g.peers;
  const Reduction r = reduction_of(c, g);
  const std::int64_t n = c.count * peers.size(), width = r.bytes(1);
  const Halving h{peers, n, width};
  std::byte *room = g.scratch.bytes(2 * n * width), *x = room + n * width;
  h.reduce(room, r, x, c.in);
  const Elements all{x, width};
  const Range own = h.chunk(h.rank);
  if (h.places.stands_back(h.rank))
    return receive(peers, h.rank - 1, {c.out, static_cast<std::size_t>(r.bytes(own.count()))});
  if (h.places.has_partner(h.rank)) send(peers, h.rank + 1, all[h.chunk(h.rank + 1)]);
  copy_bytes(c.out, all[own].data(), r.bytes(own.count()));
}

void halving_all_gather(const Call& c, Ground& g) {
  place_own_part(c, g, c.in);
  const Halving h{g.peers, c.bytes() * g.peers.size(), 1};
  const Elements all{c.out, 1};
  if (h.places.stands_back(h.rank)) send(g.peers, h.rank - 1, all[h.chunk(h.rank)]);
  if (h.places.has_partner(h.rank)) receive(g.peers, h.rank + 1, all[h.chunk(h.rank + 1)]);
  h.gather(c.out);
}

}  // namespace

void halving_all_reduce(Peers& peers, Scratch& scratch, const Reduction& r, std::byte* x, std::int64_t n) {
  const Halving h{peers, n, r.bytes(1)};
  if (r.bytes(n) <= kShort) return h.reduce_everywhere(scratch.bytes(n * h.width), r, x);
  h.reduce(scratch.bytes(n * h.width), r, x, x);
  h.gather(x);
}

void halving_barrier(Peers& peers) {
  const Places places{peers.size()};
  const int rank = peers.rank(), place = places.place(rank);
  const auto meet = [&](int peer, bool sends, bool receives) {
    Messages m(peers);
    if (receives) m.receive(peer, {});
    if (sends) m.send(peer, {});
    m.wait();
  };
  if (places.stands_back(rank)) return meet(rank - 1, true, false), meet(rank - 1, false, true);
  if (places.has_partner(rank)) meet(rank + 1, false, true);
  for (int d = 1; d < places.power; d *= 2) meet(places.rank(place ^ d), true, true);
  if (places.has_partner(rank)) meet(rank + 1, true, false);
}

const AlgorithmRow halving_row{
    .all_reduce = [](const Call& c,
                     Ground& g) { halving_all_reduce(g.peers, g.scratch, reduction_of(c, g), c.out, c.count); },
    .reduce_scatter = halving_reduce_scatter,
    .all_gather = halving_all_gather};

}  // namespace hpcdl::comm::algo

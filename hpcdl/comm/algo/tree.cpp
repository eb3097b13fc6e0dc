#include "hpcdl/comm/algo/tree.h"

#include <bit>

#include "hpcdl/comm/algo/algorithm.h"
#include "hpcdl/comm/algo/halving.h"

namespace hpcdl::comm::algo {

namespace {

struct Links {
  int parent = -1;
  std::vector<int> children;
  int depth = 0;  // of the whole tree
};

Links binomial(int rank, int size) {
  Links l;
  l.parent = rank & (rank - 1);
  for (int k = 1; rank + k < size && (rank == 0 || k < (rank & -rank)); k *= 2) l.children.push_back(rank + k);
  l.depth = static_cast<int>(std::bit_width(static_cast<unsigned>(size - 1)));
  return l;
}

Links chain(int rank, int size) {
  Links l{.parent = rank - 1, .children = {}, .depth = size - 1};
  if (rank + 1 < size) l.children.push_back(rank + 1);
  return l;
}

class TreeReduce {
 public:
  TreeReduce(Peers& peers, Scratch& scratch, const Reduction& r, std::byte* x, std::int64_t n, Links links)
      : r_(r),
        links_(std::move(links)),
        root_(peers.rank() == 0),
        x_{x, r.bytes(1)},
        n_(n),
        segments_(segments_of(r.bytes(n))),
        room_((n / segments_ + 1) * x_.width),
        slots_(scratch.bytes(kSlots * room_ * static_cast<std::int64_t>(links_.children.size()))),
        from_children_(peers),
        up_(peers),
        from_parent_(peers),
        down_(peers) {}

  /// A segment begins its way down before later ones go up, so that both directions of a link are busy.
  void run() {
    const std::int64_t lag = 2 * links_.depth;
    for (std::int64_t g = 0; g < segments_ + lag; ++g) {
      if (g < segments_) up(g);
      if (g >= lag) down(g - lag);
    }
    down_.wait();
  }

 private:
  static constexpr std::int64_t kSlots = 2;

  Range segment(std::int64_t g) const { return {n_ * g / segments_, n_ * (g + 1) / segments_}; }
  Bytes slot(std::int64_t g, std::size_t child) const {
    return {
        slots_ +
            (g % kSlots * static_cast<std::int64_t>(links_.children.size()) + static_cast<std::int64_t>(child)) * room_,
        x_[segment(g)].size()};
  }
  void up(std::int64_t g) {
    const std::size_t children = links_.children.size();
    for (; posted_ < segments_ && posted_ < g + kSlots; ++posted_)
      for (std::size_t c = 0; c < children; ++c) from_children_.receive(links_.children[c], slot(posted_, c));
    const Bytes own = x_[segment(g)];
    for (std::size_t c = 0; c < children; ++c) {
      from_children_.wait(static_cast<std::size_t>(g) * children + c + 1);
      combine(r_, root_ && c + 1 == children ? Part::last : Part::inner, own.data(), own.data(), slot(g, c).data(),
              segment(g).count());
    }
    if (!root_) up_.send(links_.parent, own);
  }
  void down(std::int64_t g) {
    const Bytes own = x_[segment(g)];
    if (!root_) {
      up_.wait(static_cast<std::size_t>(g + 1));
      from_parent_.receive(links_.parent, own);
      from_parent_.wait();
    }
    for (const int child : links_.children) down_.send(child, own);
  }

  const Reduction& r_;
  Links links_;
  bool root_;
  Elements x_;
  std::int64_t n_, segments_, room_;
  std::byte* slots_;
  std::int64_t posted_ = 0;
  Messages from_children_, up_, from_parent_, down_;
};

void tree_broadcast(const Call& call, Ground& ground) {
  Peers& peers = ground.peers;
  const std::int64_t bytes = call.bytes();
  const int root = call.peer;
  const int size = peers.size(), from_root = (peers.rank() + size - root) % size;
  const Links links = binomial(from_root, size);
  const auto real = [&](int r) { return (r + root) % size; };
  const std::int64_t segments = segments_of(bytes);
  Messages received(peers), sent(peers);
  const Elements all{call.out, 1};
  const auto segment = [&](std::int64_t g) { return all[{bytes * g / segments, bytes * (g + 1) / segments}]; };
  if (from_root != 0)
    for (std::int64_t g = 0; g < segments; ++g) received.receive(real(links.parent), segment(g));
  for (std::int64_t g = 0; g < segments; ++g) {
    if (from_root != 0) received.wait(static_cast<std::size_t>(g + 1));
    for (auto child = links.children.rbegin(); child != links.children.rend(); ++child)
      sent.send(real(*child), segment(g));  // the deepest subtree first
  }
  sent.wait();
}

/// Every rank knows that all ranks have come, after log2(N) steps (Hensgen, Finkel, Manber, 1988). With many ranks, the
/// same pairs as in halving exchange messages: other pairs would double the number of connections.
void tree_barrier(const Call&, Ground& g) {
  Peers& peers = g.peers;
  if (peers.size() > kMostTogether) return halving_barrier(peers);
  for (int d = 1; d < peers.size(); d *= 2) {
    Messages m(peers);
    m.receive((peers.rank() + peers.size() - d) % peers.size(), {});
    m.send((peers.rank() + d) % peers.size(), {});
    m.wait();
  }
}

}  // namespace

void tree_all_reduce(Peers& peers, Scratch& scratch, const Reduction& r, std::byte* x, std::int64_t n,
                     TreeShape shape) {
  TreeReduce(peers, scratch, r, x, n,
             shape == TreeShape::chain ? chain(peers.rank(), peers.size()) : binomial(peers.rank(), peers.size()))
      .run();
}

const AlgorithmRow tree_row{
    .all_reduce = [](const Call& c,
                     Ground& g) { tree_all_reduce(g.peers, g.scratch, reduction_of(c, g), c.out, c.count); },
    .broadcast = tree_broadcast,
    .barrier = tree_barrier};

}  // namespace hpcdl::comm::algo

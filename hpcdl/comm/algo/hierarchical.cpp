// All-reduce over several hosts with several ranks each: sums inside every host through shared memory, between the
// first ranks of all hosts by messages, and copies inside every host: each host sends the tensor once, not once for
// each of its ranks. Between two hosts: the pipelined ring. Between more: halving where their number is a power of two,
// otherwise a chain, so that the bits of an element never depend on its position.

#include <bit>

#include "hpcdl/comm/algo/algorithm.h"
#include "hpcdl/comm/algo/halving.h"
#include "hpcdl/comm/algo/ring.h"
#include "hpcdl/comm/algo/shared.h"
#include "hpcdl/comm/algo/tree.h"

namespace hpcdl::comm::algo {

namespace {

/// The lowest rank of each host, by rank of the group.
std::vector<int> first_ranks(const Peers& peers) {
  std::vector<int> firsts, hosts;
  for (int k = 0; k < peers.size(); ++k) {
    if (std::find(hosts.begin(), hosts.end(), peers.host(k)) != hosts.end()) continue;
    hosts.push_back(peers.host(k));
    firsts.push_back(k);
  }
  return firsts;
}

void between_hosts(Peers& firsts, Scratch& scratch, const Reduction& r, std::byte* x, std::int64_t n) {
  const auto hosts = static_cast<unsigned>(firsts.size());
  if (hosts == 2) ring_all_reduce(firsts, scratch, r, x, n);
  else if (std::has_single_bit(hosts)) halving_all_reduce(firsts, scratch, r, x, n);
  else tree_all_reduce(firsts, scratch, r, x, n, TreeShape::chain);
}

void hierarchical_all_reduce(const Call& c, Ground& g) {
  if (g.one_host && g.shared) return shared_row.all_reduce(c, g);
  const auto firsts = first_ranks(g.peers);
  const Reduction r = reduction_of(c, g);
  int here = 0;
  for (int k = 0; k < g.peers.size(); ++k) here += g.peers.host(k) == g.peers.host(g.peers.rank());
  const bool together = here > 1;
  require(!together || g.shared, "comm",
          "the algorithm hierarchical needs memory that the {} ranks of a host share, and this transport has none: "
          "choose another one",
          here);
  if (together) shared_reduce_to_first(r, g, c.out, c.count);
  const auto me = std::find(firsts.begin(), firsts.end(), g.peers.rank());
  if (me != firsts.end()) {
    std::vector<int> world;
    for (const int k : firsts) world.push_back(g.peers.world_rank(k));
    Peers between = g.peers.among(world, static_cast<int>(me - firsts.begin()));
    between_hosts(between, g.scratch, r, c.out, c.count);
    g.peers.add_wire_bytes(between.wire_bytes());
  }
  if (together) shared_copy_from(g, 0, c.out, c.bytes());
}

}  // namespace

const AlgorithmRow hierarchical_row{.needs = Needs::many_hosts, .all_reduce = hierarchical_all_reduce};

}  // namespace hpcdl::comm::algo

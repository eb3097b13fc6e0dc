// From a call to the algorithm that does it.

#include "hpcdl/comm/algo/halving.h"
#include "hpcdl/comm/algo/hierarchical.h"
#include "hpcdl/comm/algo/pairwise.h"
#include "hpcdl/comm/algo/policy.h"
#include "hpcdl/comm/algo/ring.h"
#include "hpcdl/comm/algo/ring_blocking.h"
#include "hpcdl/comm/algo/shared.h"
#include "hpcdl/comm/algo/star.h"
#include "hpcdl/comm/algo/tree.h"

namespace hpcdl::comm {

namespace algo {
namespace {

Situation situation(const Call& c, const Ground& g) {
  const std::int64_t parts = c.what == Collective::all_reduce || c.what == Collective::broadcast ? 1 : g.peers.size();
  // A rank that is alone on its host has no shared memory, but the others may: what all ranks know alike is only this.
  return {c.what,
          c.bytes() * parts,
          g.peers.size(),
          g.hosts,
          g.one_host ? g.shared != nullptr : g.hosts < g.peers.size(),
          static_cast<bool>(c.in_place),
          g.on_host};
}

Algorithm choose(const Call& c, const Ground& g) {
  return g.policy ? g.policy->choose(situation(c, g)) : default_choice(situation(c, g));
}

[[noreturn]] void no_such(const Call& c) {
  std::string has;
  for (const Algorithm a : algorithms_of(c.what))
    has += fmt::format("{}{}", has.empty() ? "" : ", ", algorithm_name(a));
  fail("comm",
       "{} has no algorithm {} here: it has {}; shared needs all ranks on one host, native a transport with a library "
       "of its own",
       collective_name(c.what), algorithm_name(c.algorithm), has);
}

void run_native(const Call& c, Ground& g) {
  if (!g.native) no_such(c);
  g.native->start(c);
  g.peers.wait_until(-1, [&] { return g.native->done(); });
}

void all_reduce(Algorithm a, const Call& c, Ground& g) {
  const Reduction r = reduction_of(c, g);
  switch (a) {
    case Algorithm::ring: return ring_all_reduce(g.peers, g.scratch, r, c.out, c.count);
    case Algorithm::ring_blocking: return ring_blocking_all_reduce(g.peers, g.scratch, r, c.out, c.count);
    case Algorithm::halving: return halving_all_reduce(g.peers, g.scratch, r, c.out, c.count);
    case Algorithm::tree: return tree_all_reduce(g.peers, g.scratch, r, c.out, c.count);
    case Algorithm::star: return star_all_reduce(g.peers, g.scratch, r, c.out, c.count);
    case Algorithm::hierarchical: return hierarchical_all_reduce(c, g);
    default: no_such(c);
  }
}

void reduce_scatter(Algorithm a, const Call& c, Ground& g) {
  const Reduction r = reduction_of(c, g);
  const std::int64_t n = c.count * g.peers.size();
  switch (a) {
    case Algorithm::ring: return ring_reduce_scatter(g.peers, g.scratch, r, c.out, c.in, n);
    case Algorithm::ring_blocking: return ring_blocking_reduce_scatter(g.peers, g.scratch, r, c.out, c.in, n);
    case Algorithm::halving: return halving_reduce_scatter(g.peers, g.scratch, r, c.out, c.in, n);
    case Algorithm::pairwise: return pairwise_reduce_scatter(g.peers, g.scratch, r, c.out, c.in, c.count);
    default: no_such(c);
  }
}

void all_gather(Algorithm a, const Call& c, Ground& g) {
  const std::int64_t bytes = c.bytes(), n = bytes * g.peers.size();
  copy_bytes(c.out + g.peers.rank() * bytes, c.in, bytes);
  switch (a) {
    case Algorithm::ring: return ring_all_gather(g.peers, c.out, n, 1);
    case Algorithm::ring_blocking: return ring_blocking_all_gather(g.peers, c.out, n, 1);
    case Algorithm::halving: return halving_all_gather(g.peers, c.out, n, 1);
    case Algorithm::pairwise: return pairwise_all_gather(g.peers, c.out, bytes);
    default: no_such(c);
  }
}

/// Everybody knows that everybody has come, after log2(N) steps (Hensgen, Finkel, Manber, 1988). Of many ranks those
/// that halving lets talk to each other do so here, too: others would be as many connections again.
void barrier(Peers& peers) {
  if (peers.size() > kMostTogether) return halving_barrier(peers);
  for (int d = 1; d < peers.size(); d *= 2) {
    Messages m(peers);
    m.receive((peers.rank() + peers.size() - d) % peers.size(), {});
    m.send((peers.rank() + d) % peers.size(), {});
    m.wait();
  }
}

/// In one piece, as the progress thread does it when several are under way.
void message(const Call& c, Peers& peers) {
  Messages m(peers);
  const auto n = static_cast<std::size_t>(c.bytes());
  if (c.what == Collective::send) m.send(c.peer, {c.in, n});
  else m.receive(c.peer, {c.out, n});
  m.wait();
}

void run_shared(const Call& c, Ground& g) {
  if (!g.one_host || !g.shared) no_such(c);
  switch (c.what) {
    case Collective::all_reduce: return shared_all_reduce(c, g);
    case Collective::reduce_scatter: return shared_reduce_scatter(c, g);
    case Collective::split:
    case Collective::all_gather: return shared_all_gather(c, g);
    case Collective::all_to_all: return shared_all_to_all(c, g);
    case Collective::broadcast: return shared_broadcast(c, g);
    case Collective::barrier: return shared_barrier(g);
    default: no_such(c);
  }
}

}  // namespace
}  // namespace algo

void run(const Call& c, Ground& g) {
  using namespace algo;
  const bool point_to_point = c.what == Collective::send || c.what == Collective::receive;
  const Algorithm a = c.algorithm != Algorithm::automatic || point_to_point ? c.algorithm : choose(c, g);
  if (c.what == Collective::all_reduce || c.what == Collective::reduce_scatter) check(reduction_of(c, g));
  if (a == Algorithm::native) return run_native(c, g);
  if (a == Algorithm::shared) return run_shared(c, g);
  switch (c.what) {
    case Collective::all_reduce: return all_reduce(a, c, g);
    case Collective::reduce_scatter: return reduce_scatter(a, c, g);
    case Collective::split:
      return all_gather(g.peers.size() > kMostTogether ? Algorithm::halving : Algorithm::pairwise, c, g);
    case Collective::all_gather: return all_gather(a, c, g);
    case Collective::all_to_all:
      if (a != Algorithm::pairwise) no_such(c);
      return pairwise_all_to_all(g.peers, c.out, c.in, c.bytes());
    case Collective::broadcast: return tree_broadcast(g.peers, c.out, c.bytes(), c.peer);
    case Collective::barrier: return barrier(g.peers);
    case Collective::send:
    case Collective::receive: return message(c, g.peers);
  }
}

}  // namespace hpcdl::comm

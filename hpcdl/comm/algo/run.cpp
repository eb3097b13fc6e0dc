// Dispatches a call to its algorithm.

#include "hpcdl/comm/algo/algorithm.h"
#include "hpcdl/comm/algo/pieces.h"
#include "hpcdl/comm/algo/policy.h"

namespace hpcdl::comm {

namespace algo {
namespace {

Situation situation(const Call& c, const Ground& g) {
  const std::int64_t parts = c.what == Collective::all_reduce || c.what == Collective::broadcast ? 1 : g.peers.size();
  // A rank that is alone on its host has no shared memory, but the others may. All ranks must decide by the same facts.
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

/// many_hosts: `hierarchical` itself reports what is missing.
bool met(Needs needs, const Ground& g) {
  if (needs == Needs::one_host) return g.one_host && g.shared;
  return needs != Needs::library || g.native;
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

/// Without segments, as the progress thread does it if several are under way.
void message(const Call& c, Peers& peers) {
  Messages m(peers);
  const auto n = static_cast<std::size_t>(c.bytes());
  if (c.what == Collective::send) m.send(c.peer, {c.in, n});
  else m.receive(c.peer, {c.out, n});
  m.wait();
}

void run_native(const Call& c, Ground& g) {
  g.native->start(c);
  g.peers.wait_until(-1, [&] { return g.native->done(); });
}

/// `automatic` is not an algorithm and promises nothing.
constexpr AlgorithmRow kAutomatic{.order = Order::unknown};

constexpr const AlgorithmRow* kRows[] = {&kAutomatic,
#define HPCDL_ROW(name) &name##_row,
                                         HPCDL_COLLECTIVE_ALGORITHMS(HPCDL_ROW)
#undef HPCDL_ROW
};

}  // namespace

const AlgorithmRow native_row{.needs = Needs::library,
                              .order = Order::unknown,
                              .all_reduce = run_native,
                              .reduce_scatter = run_native,
                              .all_gather = run_native,
                              .all_to_all = run_native,
                              .broadcast = run_native,
                              .barrier = run_native};

const AlgorithmRow& row_of(Algorithm a) { return *kRows[static_cast<int>(a)]; }

AlgorithmRow::Run AlgorithmRow::of(Collective what) const {
  switch (what) {
    case Collective::all_reduce: return all_reduce;
    case Collective::reduce_scatter: return reduce_scatter;
    case Collective::split:
    case Collective::all_gather: return all_gather;
    case Collective::all_to_all: return all_to_all;
    case Collective::broadcast: return broadcast;
    case Collective::barrier: return barrier;
    default: return nullptr;
  }
}

}  // namespace algo

void run(const Call& c, Ground& g) {
  using namespace algo;
  if (one_to_one(c.what)) return message(c, g.peers);
  if (c.what == Collective::all_reduce || c.what == Collective::reduce_scatter) check(reduction_of(c, g));
  const AlgorithmRow& row = row_of(c.algorithm == Algorithm::automatic ? choose(c, g) : c.algorithm);
  const auto collective = row.of(c.what);
  if (!collective || !met(row.needs, g)) no_such(c);
  collective(c, g);
}

}  // namespace hpcdl::comm

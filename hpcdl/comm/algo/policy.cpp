#include "hpcdl/comm/algo/policy.h"

#include <algorithm>

#include "hpcdl/comm/algo/reduction.h"

namespace hpcdl::comm::algo {
namespace {

/// Whether one rank sums the tensors of all in one sweep, and they are more than that takes.
bool too_many(Algorithm a, Collective what, int ranks) {
  const bool at_once = (a == Algorithm::pairwise && what == Collective::reduce_scatter) || a == Algorithm::star;
  return at_once && ranks > kMostTogether;
}

/// Whether the ranks of each host can work through the memory that they share: a phase of theirs sums as many tensors
/// as there are ranks.
bool can_share(const Situation& s) {
  const int on_host = s.on_host > 0 ? s.on_host : (s.ranks + s.hosts - 1) / s.hosts;
  return s.shared && on_host <= kMostTogether;
}

bool can_be_shared(const Situation& s) { return s.hosts == 1 && can_share(s); }
bool can_be_hierarchical(const Situation& s) { return s.hosts > 1 && s.hosts < s.ranks && can_share(s); }

}  // namespace

std::span<const Algorithm> algorithms_of(Collective what) {
  using enum Algorithm;
  static constexpr Algorithm reduce[] = {ring, ring_blocking, halving, tree, shared, star, hierarchical, native};
  static constexpr Algorithm parts[] = {ring, ring_blocking, halving, pairwise, shared, native};
  static constexpr Algorithm exchange[] = {pairwise, shared, native};
  static constexpr Algorithm spread[] = {tree, shared, native};
  switch (what) {
    case Collective::all_reduce: return reduce;
    case Collective::reduce_scatter:
    case Collective::all_gather: return parts;
    case Collective::all_to_all: return exchange;
    case Collective::broadcast:
    case Collective::barrier: return spread;
    default: return {};
  }
}

std::vector<Algorithm> possible(const Situation& s, bool native) {
  std::vector<Algorithm> list;
  for (const Algorithm a : algorithms_of(s.what)) {
    if ((a == Algorithm::native && !native) || too_many(a, s.what, s.ranks)) continue;
    if (a == Algorithm::shared && !can_be_shared(s)) continue;
    if (a == Algorithm::hierarchical && !can_be_hierarchical(s)) continue;
    list.push_back(a);
  }
  return list;
}

bool position_independent(Algorithm a, int ranks) {
  switch (a) {
    case Algorithm::halving:
    case Algorithm::tree:
    case Algorithm::pairwise:
    case Algorithm::shared:
    case Algorithm::star:
    case Algorithm::hierarchical: return true;
    case Algorithm::ring:
    case Algorithm::ring_blocking: return ranks <= 2;
    default: return false;
  }
}

Algorithm default_choice(const Situation& s) {
  constexpr std::int64_t kShort = 16 << 10;
  if (can_be_shared(s)) return Algorithm::shared;
  const bool is_short = s.bytes <= kShort, many = s.ranks > kMostTogether;
  // A ring of many ranks takes as many steps, each with a part of the tensor that is hardly worth one.
  const bool short_parts = many && s.bytes / s.ranks <= kShort;
  switch (s.what) {
    case Collective::all_reduce:
      if (is_short) return Algorithm::halving;
      if (can_be_hierarchical(s)) return Algorithm::hierarchical;
      return short_parts ? Algorithm::halving : Algorithm::ring;
    case Collective::reduce_scatter:
    case Collective::all_gather:
      if (short_parts) return Algorithm::halving;
      return is_short && !many ? Algorithm::pairwise : Algorithm::ring;
    case Collective::all_to_all: return Algorithm::pairwise;
    default: return Algorithm::tree;
  }
}

}  // namespace hpcdl::comm::algo

#pragma once
// Small facts that all ranks must know before they go on: counts, losses, whether to stop. Host memory; each is one
// collective.

#include <cstdint>
#include <span>
#include <vector>

#include "hpcdl/comm/group.h"

namespace hpcdl::parallel {

/// Sums over the ranks, added in the order of ranks in double: the same bits everywhere. Equally many values on every
/// rank.
std::vector<double> sum_over_ranks(const comm::Group& group, std::span<const double> values);
double sum_over_ranks(const comm::Group& group, double value);
/// Collective. What rank 0 has, on every rank.
std::vector<std::int32_t> of_first_rank(const comm::Group& group, std::vector<std::int32_t> mine);
/// Whether it is so on any rank.
bool any_rank(const comm::Group& group, bool mine);
/// Collective. Threads that this rank may use: ranks of one host that may run on the same processors share them.
int threads_per_rank(const comm::Group& group);

/// Runs f on one rank of each host first, and then on its other ranks: what the first one writes, the others find.
template <class F> auto host_by_host(const comm::Group& group, F&& f) {
  bool first = true;
  for (int r = 0; r < group.rank(); ++r) first = first && group.host(r) != group.host(group.rank());
  if (!first) any_rank(group, false);
  auto result = f();
  if (first) any_rank(group, false);
  return result;
}

}  // namespace hpcdl::parallel

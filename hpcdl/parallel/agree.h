#pragma once
// Small facts that all ranks must know before they go on: counts, losses, whether to stop. Host memory; each is one
// collective.

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <span>
#include <utility>
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

/// Collective. Returns on all ranks once done() is true on each; it may wait so long for that. Ranks that wait hear of
/// each other several times a second, so that the time does not count against the deadline of a collective.
void wait_for_all(const comm::Group& group, const std::function<bool(std::chrono::milliseconds)>& done);

/// Whether no rank before this one is on its host.
bool first_of_host(const comm::Group& group);

/// Runs f on one rank of each host first, in another thread, and then on its other ranks: what the first one writes,
/// the others find. It may take longer than the deadline of a collective.
template <class F> auto host_by_host(const comm::Group& group, F&& f) {
  if (group.size() == 1) return f();
  if (!first_of_host(group)) {
    wait_for_all(group, [](std::chrono::milliseconds) { return true; });
    return f();
  }
  auto work = std::async(std::launch::async, [&] { return f(); });
  std::optional<decltype(f())> result;
  wait_for_all(group, [&](std::chrono::milliseconds time) {
    if (!result && work.wait_for(time) == std::future_status::ready) result.emplace(work.get());
    return result.has_value();  // an error is thrown from here: the others are not told to go on
  });
  return std::move(*result);
}

}  // namespace hpcdl::parallel

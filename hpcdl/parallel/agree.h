#pragma once
// Small facts that all ranks must know before they continue: counts, losses, whether to stop. Host memory; each is one
// collective.

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "hpcdl/group.h"

namespace hpcdl::parallel {

/// Sums over the ranks, added in the order of ranks in double: the same bits everywhere. The same number of values on
/// every rank.
std::vector<double> sum_over_ranks(const comm::Group& group, std::span<const double> values);
double sum_over_ranks(const comm::Group& group, double value);
/// Collective. Returns the values of rank 0 on every rank.
std::vector<std::int32_t> of_first_rank(const comm::Group& group, std::vector<std::int32_t> mine);
/// Whether it is true on any rank.
bool any_rank(const comm::Group& group, bool mine);
/// Collective. Number of threads that this rank may use: ranks of one host that may run on the same processors share
/// them.
int threads_per_rank(const comm::Group& group);

/// Collective. Returns on all ranks once done() is true on each; done() may wait for the given time. Ranks that wait
/// exchange messages several times a second, so that the deadline of a collective does not apply to the whole
/// wait.
void wait_for_all(const comm::Group& group, const std::function<bool(std::chrono::milliseconds)>& done);

/// Whether this is the first rank of its host.
bool first_of_host(const comm::Group& group);

/// Runs f first on one rank of each host, in another thread, and then on its other ranks, which find the files that
/// the first one has written. It may take longer than the deadline of a collective.
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
    return result.has_value();  // an error was thrown: the others are not told to continue
  });
  return std::move(*result);
}

}  // namespace hpcdl::parallel

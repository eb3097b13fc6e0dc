#pragma once
// How sides of a collective take turns, on any device.

#include <algorithm>
#include <cstddef>
#include <vector>

#include "hpcdl/lab/comm/bench.h"
#include "hpcdl/lab/compare/protocol.h"

namespace hpcdl::lab {

/// run.turn(side, calls): seconds per call of that many calls on this rank; run.error(side); run.wire_bytes(side);
/// run.slowest(times): the maximum over all ranks, element by element. All of them are collective.
template <class Run>
std::vector<CommResult> in_turns(Run& run, const std::vector<CommSide>& sides, const CommOptions& o) {
  const std::size_t n = sides.size();
  std::vector<CommResult> results(n);
  for (std::size_t i = 0; i < n; ++i) results[i].side = sides[i];
  if (o.check)
    for (std::size_t i = 0; i < n; ++i) results[i].max_error = run.error(i);
  std::vector<double> first(n);
  for (std::size_t i = 0; i < n; ++i) first[i] = run.turn(i, 1);
  for (std::size_t i = 0; i < n; ++i) first[i] = std::min(first[i], run.turn(i, 3));
  run.slowest(first);  // so that all ranks make the same decision
  double round = 0;
  for (std::size_t i = 0; i < n; ++i) {
    results[i].calls = static_cast<int>(std::clamp(o.target / first[i], 1.0, 20000.0));
    results[i].wire_bytes = run.wire_bytes(i);
    round += (results[i].calls + 1) * first[i];
  }
  const int rounds = o.rounds ? o.rounds : static_cast<int>(std::clamp(o.seconds / round, 5.0, 101.0));
  std::vector<double> times(n * static_cast<std::size_t>(rounds));
  for (int r = 0; r < rounds; ++r)
    for (const std::size_t i : compare::turn_order(r, n))
      times[i * static_cast<std::size_t>(rounds) + static_cast<std::size_t>(r)] = run.turn(i, results[i].calls);
  run.slowest(times);
  const auto of = [&](std::size_t i) {
    return std::vector<double>(times.begin() + static_cast<std::ptrdiff_t>(i) * rounds,
                               times.begin() + static_cast<std::ptrdiff_t>(i + 1) * rounds);
  };
  const auto native = std::find_if(sides.begin(), sides.end(),
                                   [](const CommSide& x) { return x.algorithm == comm::Algorithm::native; });
  for (std::size_t i = 0; i < n; ++i) {
    results[i].rounds = rounds;
    results[i].seconds = compare::spread(of(i));
    if (native == sides.end()) continue;
    const auto theirs = of(static_cast<std::size_t>(native - sides.begin()));
    results[i].native_seconds = compare::median(theirs);
    results[i].ratio = compare::ratios_spread(compare::paired_ratios(theirs, of(i)));
  }
  return results;
}

}  // namespace hpcdl::lab

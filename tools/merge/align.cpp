#include "tools/merge/align.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

namespace hpcdl::lab {

namespace {

double micros(std::int64_t ns) { return static_cast<double>(ns) * 1e-3; }

struct Median {
  double value = 0, spread = 0;  // half the distance between the quartiles
};

Median median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return {x[x.size() / 2], (x[x.size() * 3 / 4] - x[x.size() / 4]) / 2};
}

std::optional<Alignment> by_pings(const RankTrace& reference, const RankTrace& t) {
  if (t.clock.pings.empty()) return std::nullopt;
  // The answer was given between sending and receiving: the shortest exchange is the most accurate. The best of the
  // first and of the second half also give the drift, if they are far apart.
  const auto trip = [](const Ping& p) { return p.received - p.sent; };
  const auto best = [&](auto begin, auto end) {
    return *std::min_element(begin, end, [&](const Ping& a, const Ping& b) { return trip(a) < trip(b); });
  };
  const auto offset = [&](const Ping& p) {
    return micros(p.answered - reference.clock.base) - micros((p.sent + p.received) / 2 - t.clock.base);
  };
  const auto local = [&](const Ping& p) { return micros((p.sent + p.received) / 2 - t.clock.base); };
  const auto& pings = t.clock.pings;
  const auto half = pings.begin() + std::ssize(pings) / 2;
  Alignment a{.rank = t.rank, .by = AlignedBy::pings, .samples = static_cast<int>(pings.size())};
  const Ping whole = best(pings.begin(), pings.end());
  a.offset = offset(whole);
  a.uncertainty = micros(trip(whole)) / 2;
  if (half == pings.begin()) return a;
  const Ping first = best(pings.begin(), half), second = best(half, pings.end());
  constexpr double kFarApart = 1e6;  // a second, in which clocks drift by some microseconds
  if (const double apart = local(second) - local(first); apart > kFarApart) {
    a.drift = (offset(second) - offset(first)) / apart;
    a.offset = offset(first) - a.drift * local(first);
    a.uncertainty = micros(std::max(trip(first), trip(second))) / 2;
  }
  return a;
}

/// By moments that are the same on both clocks.
std::optional<Alignment> by_moments(AlignedBy by, const RankTrace& t, const std::vector<double>& differences) {
  if (differences.empty()) return std::nullopt;
  const auto m = median(differences);
  return Alignment{.rank = t.rank,
                   .by = by,
                   .offset = m.value,
                   .uncertainty = m.spread,
                   .samples = static_cast<int>(differences.size())};
}

/// All ranks leave a collective together, whichever comes last.
std::optional<Alignment> by_collectives(const RankTrace& reference, const RankTrace& t) {
  std::map<std::string, double> ends;
  for (const auto& w : reference.work)
    if (!w.match.empty()) ends.emplace(w.match, w.end);
  std::vector<double> differences;
  for (const auto& w : t.work)
    if (const auto it = ends.find(w.match); !w.match.empty() && it != ends.end())
      differences.push_back(it->second - w.end);
  return by_moments(AlignedBy::collectives, t, differences);
}

std::optional<Alignment> by_steps(const RankTrace& reference, const RankTrace& t) {
  std::vector<double> differences;
  for (const auto& [step, begin] : t.step_begin)
    if (const auto it = reference.step_begin.find(step); it != reference.step_begin.end())
      differences.push_back(it->second - begin);
  return by_moments(AlignedBy::steps, t, differences);
}

Alignment align_one(const RankTrace& reference, const RankTrace& t) {
  if (t.clock.host == reference.clock.host)
    return {.rank = t.rank, .by = AlignedBy::host, .offset = micros(t.clock.base - reference.clock.base)};
  if (const auto a = by_pings(reference, t)) return *a;
  if (const auto a = by_collectives(reference, t)) return *a;
  if (const auto a = by_steps(reference, t)) return *a;
  return {.rank = t.rank,
          .by = AlignedBy::wall_clock,
          .offset = micros(t.clock.unix_base - reference.clock.unix_base),
          .uncertainty = 10'000};
}

}  // namespace

std::string_view aligned_name(AlignedBy by) {
  constexpr std::string_view names[] = {"reference",   "same host, same clock", "pings",
                                        "collectives", "beginnings of steps",   "wall clock"};
  return names[static_cast<int>(by)];
}

std::vector<Alignment> align(const std::vector<RankTrace>& traces) {
  std::vector<Alignment> list;
  for (const auto& t : traces)
    list.push_back(&t == &traces.front() ? Alignment{.rank = t.rank} : align_one(traces.front(), t));
  return list;
}

}  // namespace hpcdl::lab

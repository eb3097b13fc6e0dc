#include "hpcdl/comm/watch/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hpcdl::comm {
namespace {

using Kind = RankState::Kind;
using Ranks = std::span<const RankState>;
constexpr std::size_t kMostNamed = 4;

const RankState& at(Ranks ranks, int r) { return ranks[static_cast<std::size_t>(r)]; }

std::vector<int> of_kind(Ranks ranks, Kind kind) {
  std::vector<int> out;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    if (ranks[r].kind == kind) out.push_back(static_cast<int>(r));
  return out;
}

std::string list(Ranks ranks, const std::vector<int>& which) {
  std::string text;
  for (std::size_t i = 0; i < which.size() && i < kMostNamed; ++i) text += (i ? ", " : "") + named(ranks, which[i]);
  if (which.size() > kMostNamed) text += fmt::format(" and {} more", which.size() - kMostNamed);
  return text;
}

double age(const LedgerEntry& e) { return static_cast<double>(e.since) * 1e-9; }

std::string operation(const Report& r) { return describe(r.collective); }

/// What it was doing according to its own report, "in data for 3.1 s".
std::string doing(const Report& r) {
  if (r.in_collective()) return fmt::format("in {} for {}", operation(r), format_age(age(r.collective)));
  std::string text = r.work.phase == Phase::start || r.work.phase == Phase::idle || r.work.phase == Phase::collective
                         ? std::string("outside collectives")
                         : fmt::format("in {} for {}", phase_name(r.work.phase), format_age(age(r.work)));
  if (r.collective.number > 0) text += fmt::format(" after {}", operation(r));
  return text;
}

std::string last_words(const RankState& s) {
  if (s.heard_ago < 0) return "no message ever came from it";
  return fmt::format("{} ago it was {}", format_age(s.heard_ago), doing(s.report));
}

/// Which rank waits, and in what: "; rank 0 on a waits in ...": the asker, or the lowest rank that is in a collective.
std::string waiting(Ranks ranks, int asker, const std::vector<int>& blamed) {
  const auto waits = [&](int r) {
    return at(ranks, r).kind == Kind::answers && at(ranks, r).report.in_collective() &&
           std::find(blamed.begin(), blamed.end(), r) == blamed.end();
  };
  int who = asker >= 0 && waits(asker) ? asker : -1;
  for (int r = 0; who < 0 && r < static_cast<int>(ranks.size()); ++r)
    if (waits(r)) who = r;
  if (who < 0)
    return asker < 0 || at(ranks, asker).kind != Kind::answers
               ? ""
               : fmt::format("; {} has been {}", named(ranks, asker), doing(at(ranks, asker).report));
  return fmt::format("; {} waits in {}", named(ranks, who), operation(at(ranks, who).report));
}

/// The one host that holds exactly these ranks: then the verdict names the host. Of a single host nothing is
/// said.
std::string whole_host(Ranks ranks, const std::vector<int>& which) {
  const std::string& host = at(ranks, which.front()).host;
  bool others = false;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const bool in = std::find(which.begin(), which.end(), static_cast<int>(r)) != which.end();
    if (in != (ranks[r].host == host)) return "";
    others = others || !in;
  }
  return others ? host : "";
}

Verdict unreachable(Ranks ranks, std::vector<int> which, int asker, bool gone) {
  const RankState& first = at(ranks, which.front());
  const std::string tail = waiting(ranks, asker, which);
  const std::string host = whole_host(ranks, which);
  if (!host.empty() && which.size() > 1)
    return {which,
            fmt::format("[dist] host {} with ranks {} to {} {}: it is down or cut off, {}{}", host, which.front(),
                        which.back(), gone ? "is gone" : "does not answer", last_words(first), tail)};
  const bool many = which.size() > 1;
  std::string what;
  if (gone)
    what = many ? fmt::format("are gone; of the first: {},", first.why) : fmt::format("is gone ({});", first.why);
  else
    what = many ? "do not answer: they are frozen, or their hosts are down or cut off; of the first:"
                : "does not answer: it is frozen, or its host is down or cut off;";
  return {which, fmt::format("[dist] {} {} {}{}", list(ranks, which), what, last_words(first), tail)};
}

/// Ranks in collectives that do not match: different ones with the same number, or with different
/// numbers. The majority is assumed to be right.
std::vector<int> odd_ones(Ranks ranks, const LedgerEntry& mine, bool of_one_number) {
  std::map<std::uint32_t, std::vector<int>> by_tag;
  for (const int r : of_kind(ranks, Kind::answers)) {
    const LedgerEntry& e = at(ranks, r).report.collective;
    if (at(ranks, r).report.in_collective() && e.group_id == mine.group_id &&
        (!of_one_number || e.number == mine.number))
      by_tag[e.tag].push_back(r);
  }
  if (by_tag.size() < 2) return {};
  const auto better = [](const auto& a, const auto& b) {  // more ranks, or the same number with a lower rank
    return a.second.size() != b.second.size() ? a.second.size() > b.second.size() : a.second.front() < b.second.front();
  };
  const auto right = std::min_element(by_tag.begin(), by_tag.end(), better);
  std::vector<int> odd;
  for (auto it = by_tag.begin(); it != by_tag.end(); ++it)
    if (it != right) odd.insert(odd.end(), it->second.begin(), it->second.end());
  std::sort(odd.begin(), odd.end());
  return odd;
}

Verdict different_things(Ranks ranks, const LedgerEntry& mine, int asker, const std::vector<int>& odd) {
  int right = asker;
  for (int r = static_cast<int>(ranks.size()) - 1; r >= 0; --r) {
    const RankState& s = at(ranks, r);
    if (s.kind == Kind::answers && s.report.in_collective() && s.report.collective.group_id == mine.group_id &&
        std::find(odd.begin(), odd.end(), r) == odd.end())
      right = r;
  }
  return {odd, fmt::format("[dist] ranks make different calls: {} is in {} while {} is in {}: all ranks must make the "
                           "same calls with the same shapes in the same order",
                           list(ranks, odd), operation(at(ranks, odd.front()).report), named(ranks, right),
                           operation(at(ranks, right).report))};
}

/// Ranks of the group of `mine` that have not reached that collective: they are in other collectives, or in none. The
/// members of the group are not known here: those whose last collective was of this group, or all, if it is the world;
/// otherwise `peer`.
std::vector<int> absent(Ranks ranks, const LedgerEntry& mine, int peer, bool in_collectives) {
  std::vector<int> out;
  const bool world = mine.group_size == ranks.size();
  for (const int r : of_kind(ranks, Kind::answers)) {
    const Report& report = at(ranks, r).report;
    const LedgerEntry& last = report.collective;
    if (report.in_collective() != in_collectives ||
        (last.group_id == mine.group_id && (in_collectives || last.number >= mine.number)))
      continue;
    if (world || r == peer || (last.number > 0 && last.group_id == mine.group_id)) out.push_back(r);
  }
  return out;
}

/// Ranks that are now in the collective of `mine`, but reached it after more than half of the wait.
std::vector<int> late_ones(Ranks ranks, const LedgerEntry& mine) {
  std::vector<int> out;
  for (const int r : of_kind(ranks, Kind::answers)) {
    const LedgerEntry& e = at(ranks, r).report.collective;
    if (at(ranks, r).report.in_collective() && e.group_id == mine.group_id && e.tag == mine.tag &&
        2 * e.since < mine.since)
      out.push_back(r);
  }
  return out;
}

/// The asker is in no collective that is known here: on a GPU, collectives are part of its work.
Verdict no_step_ends(Ranks ranks, int asker, const std::vector<int>& finished, bool timed_out) {
  const std::string_view late = timed_out ? ", longer than dist.timeout" : "";
  const Report& mine = at(ranks, asker).report;
  std::vector<int> away = finished;
  for (const int r : of_kind(ranks, Kind::answers))
    if (finished.empty() && (at(ranks, r).report.in_collective() || at(ranks, r).report.work.phase != mine.work.phase))
      away.push_back(r);
  if (away.empty())
    return {{asker},
            fmt::format("[dist] no rank makes progress: {} has been {}{}, and all others answer and do the same: {}",
                        named(ranks, asker), doing(mine), late,
                        timed_out ? "a GPU hangs, or ranks call different collectives"
                                  : "ranks call different collectives, or a connection between them broke")};
  const std::string what = finished.empty()
                               ? (away.size() > 1 ? "do something else; the first has been " : "has been ") +
                                     doing(at(ranks, away.front()).report)
                               : "has finished its run";
  return {away, fmt::format("[dist] {} {}; {} has been {}{}", list(ranks, away), what, named(ranks, asker), doing(mine),
                            late)};
}

bool across_hosts(Ranks ranks, const Stuck& s) {
  return s.rank >= 0 && s.peer >= 0 && at(ranks, s.rank).host != at(ranks, s.peer).host;
}

/// The transport has reported what is wrong, and both sides answer; one of them may be about to report that it has
/// failed.
Verdict as_told(Ranks ranks, const Stuck& s) {
  const std::string where =
      across_hosts(ranks, s) ? fmt::format("between hosts {} and {}: ", at(ranks, s.rank).host, at(ranks, s.peer).host)
                             : "";
  const std::string other =
      s.peer < 0 ? ""
                 : fmt::format("; {} answers, and has been {}", named(ranks, s.peer), doing(at(ranks, s.peer).report));
  return {{s.peer >= 0 ? s.peer : s.rank},
          fmt::format("[dist] {}{} has been {}: {}{}", where, named(ranks, s.rank), doing(at(ranks, s.rank).report),
                      s.why, other),
          true};
}

/// No rank is missing in the collective, and nothing arrives. Ranks of one host may wait for each other because one of
/// them waits for another host: then the link between these hosts is the cause.
Verdict no_link(Ranks ranks, std::span<const Stuck> stuck) {
  const auto far = std::find_if(stuck.begin(), stuck.end(), [&](const Stuck& s) { return across_hosts(ranks, s); });
  const Stuck& s = far != stuck.end() ? *far : stuck.front();
  const auto& mine = at(ranks, s.rank).report;
  const std::string waited = format_age(age(mine.collective));
  const auto past = [&](const RankState& r) {
    return r.report.collective.group_id == mine.collective.group_id &&
           (r.report.collective.number > mine.collective.number || !r.report.in_collective());
  };
  const std::string all =
      fmt::format("all ranks {} {} and answer", std::any_of(ranks.begin(), ranks.end(), past) ? "came to" : "are in",
                  operation(mine));
  if (far != stuck.end())
    return {{s.rank, s.peer},
            fmt::format("[dist] hosts {} and {} cannot reach each other, or the link between them is too slow for "
                        "dist.timeout: {}, but {} has waited {} and gets nothing from {}",
                        at(ranks, s.rank).host, at(ranks, s.peer).host, all, named(ranks, s.rank), waited,
                        named(ranks, s.peer))};
  const bool one_host = std::all_of(ranks.begin(), ranks.end(), [&](const auto& r) { return r.host == ranks[0].host; });
  return {{s.peer >= 0 ? s.peer : s.rank},
          fmt::format("[dist] {}, but {} has waited {} and gets nothing{}: {}", all, named(ranks, s.rank), waited,
                      s.peer >= 0 ? " from " + named(ranks, s.peer) : "",
                      one_host ? "messages are lost, or too slow for dist.timeout"
                               : "two of the hosts cannot reach each other, or a link is too slow for dist.timeout"),
          !one_host};
}

Verdict all_answer(Ranks ranks, std::span<const Stuck> stuck) {
  const int asker = stuck.front().rank, peer = stuck.front().peer;
  const Report& mine = at(ranks, asker).report;
  const auto finished = of_kind(ranks, Kind::finished);
  const auto told = std::find_if(stuck.begin(), stuck.end(), [&](const Stuck& s) {
    return !s.why.empty() && (s.peer < 0 || at(ranks, s.peer).kind == Kind::answers);
  });
  if (told != stuck.end() && odd_ones(ranks, at(ranks, told->rank).report.collective, true).empty())
    return as_told(ranks, *told);
  if (!mine.in_collective()) return no_step_ends(ranks, asker, finished, true);
  if (const auto odd = odd_ones(ranks, mine.collective, true); !odd.empty())
    return different_things(ranks, mine.collective, asker, odd);
  const auto blame_absent = [&](const std::vector<int>& cause) {
    return Verdict{
        cause, fmt::format("[dist] {} {} {}, and did not come to {}, in which {} waits{}", list(ranks, cause),
                           cause.size() > 1 ? "are not there; the first has been" : "has been",
                           doing(at(ranks, cause.front()).report), operation(mine), named(ranks, asker),
                           finished.empty() ? "" : fmt::format("; {} has finished its run", list(ranks, finished)))};
  };
  // Some may wait for others in turn: a rank that computes, loads or saves is nearer to the cause than one that is in
  // another collective. A rank that has finished may have taken part in this one.
  if (const auto away = absent(ranks, mine.collective, peer, false); !away.empty()) return blame_absent(away);
  const auto blame_finished = [&] {
    return Verdict{finished, fmt::format("[dist] {} has finished its run{}", list(ranks, finished),
                                         waiting(ranks, asker, finished))};
  };
  if (!finished.empty() &&
      (mine.collective.group_size == ranks.size() || (peer >= 0 && at(ranks, peer).kind == Kind::finished)))
    return blame_finished();
  if (const auto late = late_ones(ranks, mine.collective); !late.empty())
    return {late,
            fmt::format("[dist] {} came late to {}: {} ago, and {} has waited in it for {}, longer than dist.timeout",
                        list(ranks, late), operation(mine), format_age(age(at(ranks, late.front()).report.collective)),
                        named(ranks, asker), format_age(age(mine.collective)))};
  if (const auto odd = odd_ones(ranks, mine.collective, false); !odd.empty())
    return different_things(ranks, mine.collective, asker, odd);
  if (const auto away = absent(ranks, mine.collective, peer, true); !away.empty()) return blame_absent(away);
  if (!finished.empty()) return blame_finished();
  return no_link(ranks, stuck);
}

/// A connection broke, but no wait has failed.
Verdict none_is_stuck(Ranks ranks) {
  int in_one = -1;
  for (int r = static_cast<int>(ranks.size()) - 1; r >= 0; --r)
    if (at(ranks, r).kind == Kind::answers && at(ranks, r).report.in_collective()) in_one = r;
  const auto finished = of_kind(ranks, Kind::finished);
  if (in_one < 0) return no_step_ends(ranks, 0, finished, false);
  const Stuck first{in_one};
  return all_answer(ranks, {&first, 1});
}

}  // namespace

std::string format_age(double seconds) {
  return seconds < 10 ? fmt::format("{:.1f} s", seconds) : fmt::format("{:.0f} s", seconds);
}

std::string named(Ranks ranks, int rank) { return fmt::format("rank {} on {}", rank, at(ranks, rank).host); }

Verdict judge(Ranks ranks, int asker, int peer) {
  const Stuck one{asker, peer};
  return judge(ranks, std::span(&one, asker < 0 ? 0u : 1u));
}

Verdict judge_pause(Ranks ranks, int rank, double seconds) {
  return {{rank},
          fmt::format("[dist] {} did not run for {}: it was stopped, or its host was suspended or overloaded, and "
                      "the others have ended without it; it has been {}",
                      named(ranks, rank), format_age(seconds), doing(at(ranks, rank).report))};
}

Verdict judge(Ranks ranks, std::span<const Stuck> stuck) {
  const int asker = stuck.empty() ? -1 : stuck.front().rank;
  if (const auto failed = of_kind(ranks, Kind::failed); !failed.empty())
    return {failed, fmt::format("[dist] {} ended by an error of its own: {}{}", list(ranks, failed),
                                at(ranks, failed.front()).why, waiting(ranks, asker, failed))};
  auto gone = of_kind(ranks, Kind::gone), silent = of_kind(ranks, Kind::silent);
  auto both = gone;
  both.insert(both.end(), silent.begin(), silent.end());
  std::sort(both.begin(), both.end());
  // The connections to a host that is cut off break one after the other.
  if (!gone.empty() && !silent.empty() && !whole_host(ranks, both).empty())
    return unreachable(ranks, std::move(both), asker, false);
  if (!gone.empty()) return unreachable(ranks, std::move(gone), asker, true);
  if (!silent.empty()) return unreachable(ranks, std::move(silent), asker, false);
  return stuck.empty() ? none_is_stuck(ranks) : all_answer(ranks, stuck);
}

}  // namespace hpcdl::comm

#include "tools/merge/critical_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "hpcdl/core/units.h"

namespace hpcdl::lab {

double Meeting::waited() const {
  double sum = 0;
  for (const auto& p : parts) sum += wait(p);
  return sum;
}

std::vector<Meeting> meetings(const std::vector<RankTrace>& traces, const std::vector<Alignment>& clocks) {
  std::map<std::string, Meeting> by_name;
  for (std::size_t t = 0; t < traces.size(); ++t)
    for (std::size_t i = 0; i < traces[t].work.size(); ++i) {
      const auto& w = traces[t].work[i];
      if (w.match.empty()) continue;
      auto& m = by_name[w.match];
      m.name = w.match.substr(0, w.match.find(','));
      m.parts.push_back({t, i, clocks[t].at(w.begin), clocks[t].at(w.end)});
    }
  std::vector<Meeting> list;
  for (auto& [name, m] : by_name) {
    if (m.parts.size() < 2) continue;
    const auto last = std::max_element(m.parts.begin(), m.parts.end(),
                                       [](const auto& a, const auto& b) { return a.begin < b.begin; });
    m.late = static_cast<std::size_t>(last - m.parts.begin());
    list.push_back(std::move(m));
  }
  std::sort(list.begin(), list.end(),
            [](const Meeting& a, const Meeting& b) { return a.parts[a.late].begin < b.parts[b.late].begin; });
  return list;
}

namespace {

constexpr double kMicro = 1e-6;

/// "linear.backward layers.3.mlp" -> "linear.backward layers.*.mlp".
std::string folded(const std::string& name) {
  const auto space = name.find(' ');
  return space == std::string::npos
             ? name
             : name.substr(0, space + 1) + folded_scope(std::string_view(name).substr(space + 1));
}

/// Seconds by name of the work of a rank between its previous meeting and work item `until`.
std::map<std::string, double> since_last_meeting(const RankTrace& t, std::size_t until) {
  std::map<std::string, double> sums;
  for (auto i = until; i-- > 0 && t.work[i].match.empty();)
    sums[folded(t.work[i].name)] += (t.work[i].end - t.work[i].begin) * kMicro;
  return sums;
}

/// The work for which the last rank took longer than the mean of the others.
void add_excess(const std::vector<RankTrace>& traces, const Meeting& m, std::map<std::string, double>& excess) {
  const auto& late = m.parts[m.late];
  for (const auto& [name, s] : since_last_meeting(traces[late.trace], late.work)) excess[name] += s;
  const auto others = static_cast<double>(m.parts.size() - 1);
  for (const auto& p : m.parts)
    if (p.trace != late.trace)
      for (const auto& [name, s] : since_last_meeting(traces[p.trace], p.work)) excess[name] -= s / others;
}

std::vector<Straggler> stragglers(const std::vector<RankTrace>& traces, const std::vector<Meeting>& list) {
  std::map<int, Straggler> by_rank;
  std::map<int, std::map<std::string, double>> excess;
  for (const auto& m : list) {
    const double waited = m.waited() * kMicro;
    if (waited <= 0) continue;
    const int rank = traces[m.parts[m.late].trace].rank;
    auto& s = by_rank[rank];
    s.rank = rank;
    ++s.times;
    s.waited += waited;
    if (waited > s.worst_waited) s.worst_waited = waited, s.worst = m.name;
    add_excess(traces, m, excess[rank]);
  }
  std::vector<Straggler> out;
  for (auto& [rank, s] : by_rank) {
    for (const auto& [name, seconds] : excess[rank])
      if (seconds > s.cause_excess) s.cause = name, s.cause_excess = seconds;
    out.push_back(std::move(s));
  }
  std::stable_sort(out.begin(), out.end(), [](const Straggler& a, const Straggler& b) { return a.waited > b.waited; });
  return out;
}

/// Walks backwards and sums the work on the path.
class Walk {
 public:
  Walk(const std::vector<RankTrace>& traces, const std::vector<Alignment>& clocks, const std::vector<Meeting>& list)
      : traces_(traces), clocks_(clocks) {
    for (const auto& m : list)
      for (const auto& p : m.parts) of_[{p.trace, p.work}] = &m;
  }

  CriticalPath run() {
    std::size_t trace = traces_.size(), at = 0;
    double last = 0;
    for (std::size_t t = 0; t < traces_.size(); ++t)
      for (std::size_t i = 0; i < traces_[t].work.size(); ++i)
        if (const double end = clocks_[t].at(traces_[t].work[i].end); trace == traces_.size() || end > last)
          trace = t, at = i, last = end;
    if (trace == traces_.size()) return {};
    double now = last;
    // If ranks met in different orders, the walk would not end.
    std::set<std::pair<std::size_t, std::size_t>> seen;
    while (seen.emplace(trace, at).second) {
      pass(trace);
      const auto& w = traces_[trace].work[at];
      double begin = clocks_[trace].at(w.begin);
      if (const auto it = of_.find({trace, at}); it != of_.end()) {
        const auto& late = it->second->parts[it->second->late];
        trace = late.trace, at = late.work, begin = late.begin;
        pass(trace);
      }
      add(trace, folded(w.name), now - begin);
      now = std::min(now, begin);
      if (at-- == 0) break;
      const double before = clocks_[trace].at(traces_[trace].work[at].end);
      add(trace, "idle", now - before);
      now = std::min(now, before);
    }
    path_.seconds = (last - now) * kMicro;
    std::reverse(path_.hops.begin(), path_.hops.end());
    for (const auto& [key, seconds] : sums_) path_.segments.push_back({key.first, key.second, seconds});
    std::stable_sort(path_.segments.begin(), path_.segments.end(),
                     [](const PathSegment& a, const PathSegment& b) { return a.seconds > b.seconds; });
    return std::move(path_);
  }

 private:
  int rank(std::size_t trace) const { return traces_[trace].rank; }
  void pass(std::size_t trace) {
    if (path_.hops.empty() || path_.hops.back() != rank(trace)) path_.hops.push_back(rank(trace));
  }
  void add(std::size_t trace, const std::string& what, double micros) {
    if (micros > 0) sums_[{rank(trace), what}] += micros * kMicro;
  }

  const std::vector<RankTrace>& traces_;
  const std::vector<Alignment>& clocks_;
  std::map<std::pair<std::size_t, std::size_t>, const Meeting*> of_;
  std::map<std::pair<int, std::string>, double> sums_;
  CriticalPath path_;
};

std::string share(double part, double of) {
  return fmt::format("{:>10} {:>6.1f} %", format_duration(part), of > 0 ? 100 * part / of : 0);
}

}  // namespace

CriticalPath critical_path(const std::vector<RankTrace>& traces, const std::vector<Alignment>& clocks,
                           const std::vector<Meeting>& list) {
  auto path = Walk(traces, clocks, list).run();
  path.stragglers = stragglers(traces, list);
  return path;
}

std::string critical_path_text(const CriticalPath& path, std::size_t meetings) {
  std::string out = fmt::format("critical path: {}", format_duration(path.seconds));
  std::map<int, double> ranks;
  for (const auto& s : path.segments) ranks[s.rank] += s.seconds;
  out += fmt::format(", over {} change{} of rank\n", path.hops.empty() ? 0 : path.hops.size() - 1,
                     path.hops.size() == 2 ? "" : "s");
  for (const auto& [rank, seconds] : ranks) out += fmt::format("  rank {:<4} {}\n", rank, share(seconds, path.seconds));
  out += "longest on it\n";
  for (std::size_t i = 0; i < std::min<std::size_t>(8, path.segments.size()); ++i)
    out += fmt::format("  rank {:<4} {}  {}\n", path.segments[i].rank, share(path.segments[i].seconds, path.seconds),
                       path.segments[i].what);
  if (meetings == 0) return out + "no collective was matched: in these traces no rank waits for another\n";
  out += fmt::format("the ranks that made others wait, in {} collectives\n", meetings);
  for (const auto& s : path.stragglers) {
    out +=
        fmt::format("  rank {:<4} came last {} time{}: the others waited {} in all, most at {} ({})", s.rank, s.times,
                    s.times == 1 ? "" : "s", format_duration(s.waited), s.worst, format_duration(s.worst_waited));
    out += s.cause.empty()
               ? "\n"
               : fmt::format("; its {} took {} longer than on the others\n", s.cause, format_duration(s.cause_excess));
  }
  return out;
}

}  // namespace hpcdl::lab

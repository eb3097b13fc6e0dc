#include "tools/merge/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/core/units.h"

namespace hpcdl::lab {

namespace {

using Json = nlohmann::ordered_json;

void check(std::vector<RankTrace>& traces) {
  require(!traces.empty(), "merge", "expected at least one trace to merge, found none");
  std::stable_sort(traces.begin(), traces.end(),
                   [](const RankTrace& a, const RankTrace& b) { return a.rank < b.rank; });
  for (std::size_t i = 0; i + 1 < traces.size(); ++i) {
    const auto &a = traces[i], &b = traces[i + 1];
    require(a.rank != b.rank, "merge", "{} and {} are both traces of rank {}: profile with --rank, or give --by-order",
            a.file, b.file, a.rank);
    require(a.world == b.world, "merge", "{} is a trace of {} ranks, {} of {}: give traces of the same run", a.file,
            a.world, b.file, b.world);
  }
}

/// An event of the merged file and when it begins; names of rows come first.
struct Placed {
  double at;
  io::Json event;
};

/// Traces hold whole nanoseconds.
double rounded(double micros) { return std::round(micros * 1e3) / 1e3; }

void place(const RankTrace& t, const Alignment& clock, double shift, std::vector<Placed>& out) {
  for (const auto& e : t.json.at("traceEvents")) {
    Placed p{-1, e};
    p.event["pid"] = t.rank;
    if (const auto ts = e.find("ts"); ts != e.end()) {
      const double begin = ts->get<double>();
      p.at = clock.at(begin) - shift;
      p.event["ts"] = rounded(p.at);
    }
    out.push_back(std::move(p));
  }
}

/// One arrow from the rank that came last to each that waited for it.
void place_arrows(const std::vector<RankTrace>& traces, const std::vector<Meeting>& list, double shift,
                  std::vector<Placed>& out) {
  int id = 0;
  for (const auto& m : list) {
    const auto& late = m.parts[m.late];
    for (const auto& p : m.parts) {
      if (m.wait(p) <= 0) continue;
      const auto arrow = [&](const char* ph, const Meeting::Part& part, double at) {
        Placed a{at - shift,
                 {{"name", m.name},
                  {"cat", "collective"},
                  {"ph", ph},
                  {"id", id},
                  {"pid", traces[part.trace].rank},
                  {"tid", static_cast<int>(Track::records)},
                  {"ts", rounded(at - shift)}}};
        if (*ph == 'f') a.event["bp"] = "e";
        out.push_back(std::move(a));
      };
      arrow("s", late, late.begin);
      arrow("f", p, std::max(p.end - 0.001, late.begin));
      ++id;
    }
  }
}

std::string trace_of(const std::vector<RankTrace>& traces, const Merged& m) {
  double shift = 0;  // the first event of all is at 0
  bool any = false;
  for (std::size_t t = 0; t < traces.size(); ++t)
    for (const auto& e : traces[t].json.at("traceEvents"))
      if (const auto ts = e.find("ts"); ts != e.end()) {
        const double at = m.clocks[t].at(ts->get<double>());
        shift = any ? std::min(shift, at) : at;
        any = true;
      }
  std::vector<Placed> events;
  for (std::size_t t = 0; t < traces.size(); ++t) place(traces[t], m.clocks[t], shift, events);
  place_arrows(traces, m.meetings, shift, events);
  std::stable_sort(events.begin(), events.end(), [](const Placed& a, const Placed& b) { return a.at < b.at; });
  std::string out = "{\"traceEvents\":[\n";
  for (std::size_t i = 0; i < events.size(); ++i)
    out += events[i].event.dump() + (i + 1 < events.size() ? ",\n" : "\n");
  const Json info = {{"backend", "hpcdl"}, {"rank", traces.front().rank}, {"world_size", traces.front().world}};
  return out + fmt::format("],\n\"displayTimeUnit\":\"ms\",\n\"distributedInfo\":{},\n\"hpcdl\":{}}}\n", info.dump(),
                           merged_json(m).dump());
}

}  // namespace

Merged merge(std::vector<RankTrace> traces) {
  check(traces);
  Merged m;
  m.clocks = align(traces);
  m.meetings = meetings(traces, m.clocks);
  m.path = critical_path(traces, m.clocks, m.meetings);
  m.json = trace_of(traces, m);
  return m;
}

std::string merged_text(const Merged& m) {
  std::string out = "clocks\n";
  for (const auto& c : m.clocks) {
    out += fmt::format("  rank {:<4} {}", c.rank, aligned_name(c.by));
    if (c.by > AlignedBy::host)
      out += fmt::format(", {}within {} ({} compared)",
                         c.drift != 0 ? fmt::format("drift {:.2f} us/s, ", 1e6 * c.drift) : "",
                         format_duration(c.uncertainty * 1e-6), c.samples);
    out += '\n';
  }
  return out + critical_path_text(m.path, m.meetings.size());
}

nlohmann::ordered_json merged_json(const Merged& m) {
  Json j;
  for (const auto& c : m.clocks)
    j["clocks"].push_back({{"rank", c.rank},
                           {"by", aligned_name(c.by)},
                           {"offset_us", c.offset},
                           {"drift", c.drift},
                           {"uncertainty_us", c.uncertainty},
                           {"samples", c.samples}});
  j["collectives"] = m.meetings.size();
  j["critical_path"] = {{"ms", 1e3 * m.path.seconds}, {"ranks", m.path.hops}, {"segments", Json::array()}};
  for (const auto& s : m.path.segments)
    j["critical_path"]["segments"].push_back({{"rank", s.rank}, {"what", s.what}, {"ms", 1e3 * s.seconds}});
  j["stragglers"] = Json::array();
  for (const auto& s : m.path.stragglers)
    j["stragglers"].push_back({{"rank", s.rank},
                               {"times_last", s.times},
                               {"others_waited_ms", 1e3 * s.waited},
                               {"worst", s.worst},
                               {"worst_ms", 1e3 * s.worst_waited},
                               {"cause", s.cause},
                               {"cause_ms", 1e3 * s.cause_excess}});
  return j;
}

}  // namespace hpcdl::lab

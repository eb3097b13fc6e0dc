#include "tools/merge/merge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "tools/profile/trace_for_tests.h"

namespace hpcdl::lab {
namespace {

using Json = nlohmann::ordered_json;

/// A rank of a made-up run: every step has 10 ms of data and forward, backward of `backward` ms, then an all-reduce
/// that all ranks leave 1 ms after the last has arrived. Written with a clock that is `clock` microseconds ahead of
/// true time.
struct Rank {
  int rank;
  double backward;   // ms
  double clock = 0;  // us
  double drift = 0;  // us per us
  std::string host = "one";
  std::vector<double> trips = {};  // us, of pings at 0, 1 s, 2 s, ...
};

constexpr int kSteps = 4;
constexpr std::int64_t kBase = 5'000'000'000;

std::string synthetic(const Rank& r, double slowest, int world) {
  Json events = Json::array();
  const auto add = [&](const char* name, const char* category, int tid, double begin, double end, Json args) {
    const auto on_clock = [&](double t) { return t * (1 + r.drift); };  // ts; the clock's lead is contained in the base
    events.push_back({{"name", name},
                      {"cat", category},
                      {"ph", "X"},
                      {"pid", r.rank},
                      {"tid", tid},
                      {"ts", on_clock(begin)},
                      {"dur", on_clock(end) - on_clock(begin)},
                      {"args", std::move(args)}});
  };
  for (const int tid : {1, 4})
    events.push_back(
        {{"name", "thread_name"}, {"ph", "M"}, {"pid", r.rank}, {"tid", tid}, {"args", {{"name", "row"}}}});
  const double step = 11'000 + 1000 * slowest;
  for (int i = 0; i < kSteps; ++i) {
    const double at = i * step, reduce = at + 10'000 + 1000 * r.backward, end = at + step;
    add(("step " + std::to_string(i + 1)).c_str(), "user_annotation", 1, at, end, {{"step", i + 1}});
    add("linear", "cpu_op", 4, at, at + 10'000, {{"scope", "layers.0.mlp"}});
    add("linear.backward", "cpu_op", 4, at + 10'000, reduce, {{"scope", "layers.3.mlp"}});
    add("all_reduce", "collective", 4, reduce, end, {{"seq", i}});
  }
  Json pings = Json::array();
  for (std::size_t i = 0; i < r.trips.size(); ++i) {
    // Sent at 1e6 i in true time; one way takes a third of the round trip.
    const auto ns = [&](double t) { return kBase + static_cast<std::int64_t>(std::llround(1e3 * t)); };
    const double sent = 1e6 * static_cast<double>(i), trip = r.trips[i];
    const auto mine = [&](double t) { return ns(t * (1 + r.drift) + r.clock); };
    pings.push_back(
        {{"sent_ns", mine(sent)}, {"answered_ns", ns(sent + trip / 3)}, {"received_ns", mine(sent + trip)}});
  }
  const Json trace = {{"traceEvents", events},
                      {"displayTimeUnit", "ms"},
                      {"distributedInfo", {{"backend", "hpcdl"}, {"rank", r.rank}, {"world_size", world}}},
                      {"hpcdl",
                       {{"clock",
                         {{"host", r.host},
                          {"base_ns", kBase + static_cast<std::int64_t>(std::llround(1e3 * r.clock))},
                          {"unix_base_ns", 0},
                          {"pings", pings}}}}}};
  return trace.dump();
}

std::vector<RankTrace> traces_of(const std::vector<Rank>& ranks) {
  double slowest = 0;
  for (const auto& r : ranks) slowest = std::max(slowest, r.backward);
  std::vector<RankTrace> list;
  for (const auto& r : ranks)
    list.push_back(
        parse_rank_trace(synthetic(r, slowest, static_cast<int>(ranks.size())), "rank" + std::to_string(r.rank)));
  return list;
}

TEST(merge, a_planted_straggler_is_named_with_what_it_cost_and_why) {
  const auto m =
      merge(traces_of({{.rank = 0, .backward = 20}, {.rank = 1, .backward = 25}, {.rank = 2, .backward = 20}}));
  EXPECT_EQ(m.meetings.size(), 4u);
  ASSERT_EQ(m.path.stragglers.size(), 1u);
  const auto& s = m.path.stragglers[0];
  EXPECT_EQ(s.rank, 1);
  EXPECT_EQ(s.times, kSteps);
  EXPECT_NEAR(s.waited, 2 * kSteps * 5e-3, 1e-9);
  EXPECT_EQ(s.cause, "linear.backward layers.*.mlp");
  EXPECT_NEAR(s.cause_excess, kSteps * 5e-3, 1e-9);
  EXPECT_NEAR(m.path.seconds, kSteps * 36e-3, 1e-9);
  double sum = 0;
  for (const auto& segment : m.path.segments) {
    sum += segment.seconds;
    if (segment.what.starts_with("linear.backward")) {
      EXPECT_EQ(segment.rank, 1);
      EXPECT_NEAR(segment.seconds, kSteps * 25e-3, 1e-9);
    }
  }
  EXPECT_NEAR(sum, m.path.seconds, 1e-9);
  const auto text = merged_text(m);
  for (const char* part : {"rank 1    came last 4 times: the others waited 40 ms",
                           "linear.backward layers.*.mlp took 20 ms longer", "same host, same clock"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
}

TEST(merge, the_path_changes_rank_where_another_came_last) {
  auto traces = traces_of({{.rank = 0, .backward = 20}, {.rank = 1, .backward = 20}});
  // Rank 0 is late at the second meeting, rank 1 at the others.
  const auto delay = [&](std::size_t rank, int step) {
    for (auto& w : traces[rank].work)
      if (w.match == "all_reduce#" + std::to_string(step)) w.begin += 500;
  };
  delay(1, 0), delay(0, 1), delay(1, 2), delay(1, 3);
  const auto m = merge(std::move(traces));
  EXPECT_EQ(m.path.hops, (std::vector<int>{1, 0, 1, 0}));
  ASSERT_EQ(m.path.stragglers.size(), 2u);
  EXPECT_EQ(m.path.stragglers[0].rank, 1);
  EXPECT_EQ(m.path.stragglers[0].times, 3);
}

/// A rank with two collectives in this order, the first at 0, the second at 2 ms; both take 3 ms.
RankTrace two_meetings(int rank, const char* first, const char* second) {
  Json trace = Json::parse(synthetic({.rank = rank, .backward = 1}, 1, 2));
  trace["traceEvents"] = Json::array();
  for (const auto& [name, at] : {std::pair{first, 0.0}, {second, 2'000.0}})
    trace["traceEvents"].push_back({{"name", name},
                                    {"cat", "collective"},
                                    {"ph", "X"},
                                    {"pid", rank},
                                    {"tid", 4},
                                    {"ts", at},
                                    {"dur", 3'000.0},
                                    {"args", {{"seq", 0}}}});
  return parse_rank_trace(trace.dump(), "rank" + std::to_string(rank));
}

TEST(merge, ranks_that_met_in_another_order_have_a_path_that_ends) {
  const auto m = merge({two_meetings(0, "all_reduce", "broadcast"), two_meetings(1, "broadcast", "all_reduce")});
  EXPECT_EQ(m.meetings.size(), 2u);
  EXPECT_LE(m.path.hops.size(), 4u);
  EXPECT_NEAR(m.path.seconds, 5e-3, 4e-3);
}

TEST(merge, ranks_of_one_host_share_its_clock) {
  auto traces = traces_of({{.rank = 0, .backward = 20}, {.rank = 1, .backward = 20}});
  traces[1].clock.base += 7'000'000;  // begins 7 ms later
  const auto clocks = align(traces);
  EXPECT_EQ(clocks[1].by, AlignedBy::host);
  EXPECT_NEAR(clocks[1].offset, 7000, 1e-6);
}

/// The clocks of all hosts are wrong by large, different amounts: pings give the offset to within half a round trip,
/// and the drift.
TEST(merge, pings_undo_known_offsets_and_drift) {
  for (const double drift : {0.0, 2e-5}) {
    const auto traces = traces_of(
        {{.rank = 0, .backward = 20},
         {.rank = 1,
          .backward = 24,
          .clock = 123'456'789,
          .drift = drift,
          .host = "two",
          .trips = {90, 30, 500, 60, 30, 700}},
         {.rank = 2, .backward = 20, .clock = -987'654, .drift = -drift, .host = "three", .trips = {30, 80, 90, 30}}});
    const auto clocks = align(traces);
    for (const std::size_t i : {1u, 2u}) {
      EXPECT_EQ(clocks[i].by, AlignedBy::pings);
      EXPECT_NEAR(clocks[i].uncertainty, 15, 0.5);
      EXPECT_NEAR(clocks[i].drift, i == 1 ? -drift : drift, 1e-6);
      for (std::size_t w = 0; w < traces[i].work.size(); ++w)
        if (!traces[i].work[w].match.empty()) {
          EXPECT_NEAR(clocks[i].at(traces[i].work[w].end), traces[0].work[w].end, clocks[i].uncertainty + 1)
              << "all ranks must leave a collective together";
        }
    }
    const auto m = merge(traces);
    EXPECT_EQ(m.path.stragglers.at(0).rank, 1);
    EXPECT_NEAR(m.path.stragglers[0].waited, 2 * kSteps * 4e-3, 2 * kSteps * 20e-6);
  }
}

TEST(merge, without_pings_collectives_and_then_steps_align) {
  auto traces =
      traces_of({{.rank = 0, .backward = 20}, {.rank = 1, .backward = 24, .clock = 5'000'000, .host = "two"}});
  for (auto* list : {&traces[1].work})
    for (auto& w : *list) w.begin += 333, w.end += 333;  // of its own ts; true time is known from the rest
  const auto clocks = align(traces);
  EXPECT_EQ(clocks[1].by, AlignedBy::collectives);
  EXPECT_EQ(clocks[1].samples, kSteps);
  EXPECT_NEAR(clocks[1].offset, -333, 1e-6);
  for (auto& w : traces[1].work) w.match.clear();
  EXPECT_EQ(align(traces)[1].by, AlignedBy::steps);
  traces[1].step_begin.clear();
  EXPECT_EQ(align(traces)[1].by, AlignedBy::wall_clock);
}

TEST(merge, the_file_keeps_to_the_form_and_draws_arrows) {
  const auto m = merge(traces_of({{.rank = 1, .backward = 25, .clock = -44, .host = "two", .trips = {10, 10}},
                                  {.rank = 0, .backward = 20},
                                  {.rank = 2, .backward = 20}}));
  const auto trace = io::parse_json(m.json, "merged");
  check_trace(trace);
  std::map<int, double> records;
  std::map<int, int> arrows;
  for (const auto& e : trace.at("traceEvents")) {
    const int rank = e.at("pid");
    if (e.at("ph") == "X" && e.at("cat") == "cpu_op") records[rank] += e.at("dur").get<double>();
    if (e.at("ph") == "s") {
      EXPECT_EQ(rank, 1);
    }
    if (e.at("ph") == "f") ++arrows[rank];
  }
  EXPECT_EQ(records.size(), 3u);
  EXPECT_NEAR(records[1], kSteps * 35'000, 1);
  EXPECT_EQ(arrows, (std::map<int, int>{{0, kSteps}, {2, kSteps}}));
  EXPECT_EQ(trace.at("distributedInfo").at("world_size"), 3);
}

TEST(merge, traces_of_different_runs_are_refused) {
  const auto error = [](std::vector<RankTrace> traces) {
    try {
      merge(std::move(traces));
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(
      error(traces_of({{.rank = 0, .backward = 1}, {.rank = 0, .backward = 1}})).find("are both traces of rank 0"),
      std::string::npos);
  auto worlds = traces_of({{.rank = 0, .backward = 1}, {.rank = 1, .backward = 1}});
  worlds[1].world = 8;
  EXPECT_NE(error(worlds).find("the same run"), std::string::npos);
  EXPECT_NE(error({}).find("at least one trace"), std::string::npos);
  const auto refused = [](const std::string& text) {
    try {
      parse_rank_trace(text, "x.json");
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(refused("{\"traceEvents\":[]}"),
            "[merge] x.json: not a trace of hpcdl profile: key 'distributedInfo' not found");
  EXPECT_NE(refused(merge(traces_of({{.rank = 0, .backward = 1}, {.rank = 1, .backward = 1}})).json)
                .find("already has the traces of several ranks"),
            std::string::npos);
  EXPECT_THROW(parse_rank_trace("[1", "x.json"), Error);
}

}  // namespace
}  // namespace hpcdl::lab

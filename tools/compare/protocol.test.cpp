// The protocol on a clock that only moves when a side says so: nothing here depends on how fast the machine is.

#include "tools/compare/protocol.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "hpcdl/core/error.h"
#include "hpcdl/rng.h"

namespace hpcdl::lab::compare {
namespace {

/// Work is queued and takes its time when it is waited for, as on a GPU.
class Synthetic : public Environment {
 public:
  double now() override { return time_; }
  void synchronize() override { time_ += std::exchange(queued_, 0); }
  void flush() override { ++flushes, cold = true, time_ += 3e-3; }
  void sleep(double seconds) override { slept += seconds, time_ += seconds; }
  std::string flush_method() const override { return "flushed, they say"; }

  void queue(double seconds) { queued_ += seconds; }
  double noise() { return rng_.normal(draw_++); }
  double uniform() { return rng_.uniform(draw_++); }

  int flushes = 0;
  bool cold = false;
  double slept = 0;

 private:
  double time_ = 100, queued_ = 0;
  Rng rng_{5, 5};
  std::uint64_t draw_ = 0;
};

Side steady(Synthetic& e, std::string name, double seconds) {
  return {std::move(name), [&e, seconds] { e.queue(seconds); }};
}
/// Normal noise of this relative size on every call.
Side noisy(Synthetic& e, std::string name, double seconds, double sigma) {
  return {std::move(name), [&e, seconds, sigma] { e.queue(seconds * std::max(0.01, 1 + sigma * e.noise())); }};
}

TEST(protocol, times_are_per_unit_and_ratios_are_exact_without_noise) {
  Synthetic e;
  Side both = steady(e, "both", 4e-3);
  both.units = 4;
  const auto r = run({steady(e, "a", 2e-3), steady(e, "b", 5e-3), both}, e);
  EXPECT_NEAR(r.side("a").time().median, 2e-3, 1e-12);
  EXPECT_NEAR(r.side("both").time().median, 1e-3, 1e-12);
  EXPECT_NEAR(r.ratio("b", "a").median, 2.5, 1e-9);
  EXPECT_EQ(r.side("a").calls, 5) << "10 ms of calls";
  EXPECT_EQ(r.side("b").calls, 2);
  EXPECT_TRUE(r.settled);
  EXPECT_EQ(r.rounds(), 7) << "there is nothing to wait for";
  EXPECT_EQ(r.cache, "warm");
  EXPECT_FALSE(r.has("c"));
  EXPECT_THROW(r.ratio("c", "a"), Error);
}

TEST(protocol, fast_calls_are_repeated_and_slow_ones_made_once) {
  Synthetic e;
  const auto r = run({steady(e, "fast", 20e-9), steady(e, "slow", 0.2)}, e, {.rounds = 3});
  EXPECT_NEAR(r.side("fast").calls, 500'000, 500);
  EXPECT_NEAR(r.side("fast").time().median, 20e-9, 1e-15);
  EXPECT_EQ(r.side("slow").calls, 1);
  EXPECT_EQ(r.rounds(), 3);
}

TEST(protocol, work_still_queued_when_a_call_returns_is_waited_for) {
  Synthetic e;
  int calls = 0;
  const auto r = run({{"queues", [&] { e.queue(1e-3), ++calls; }}}, e, {.rounds = 5});
  EXPECT_NEAR(r.side("queues").time().median, 1e-3, 1e-12);
  EXPECT_GT(calls, 5 * 11) << "each round has one unmeasured call";
}

TEST(protocol, more_noise_takes_more_rounds_until_the_interval_is_narrow) {
  int rounds[2];
  for (const int i : {0, 1}) {
    Synthetic e;
    const double sigma = i ? 0.05 : 0.02;
    const auto r = run({noisy(e, "a", 0.01, sigma), noisy(e, "b", 0.02, sigma)}, e, {.limit = 1000});
    EXPECT_TRUE(r.settled);
    EXPECT_LE(r.half_width, 0.0075);
    EXPECT_NEAR(r.ratio("b", "a").median, 2, 2 * 2 * 0.0075);
    rounds[i] = r.rounds();
  }
  EXPECT_GT(rounds[0], 7);
  EXPECT_GT(rounds[1], 2 * rounds[0]);
}

TEST(protocol, too_much_noise_is_reported_when_the_time_is_over) {
  Synthetic e;
  const auto r = run({noisy(e, "a", 0.01, 0.4), noisy(e, "b", 0.01, 0.4)}, e, {.limit = 1, .patience = 1});
  EXPECT_FALSE(r.settled);
  EXPECT_GT(r.half_width, 0.0075);
  EXPECT_GE(r.rounds(), 3);
  EXPECT_LT(r.seconds, 1.2);
  const auto patient = run({noisy(e, "a", 0.01, 0.4), noisy(e, "b", 0.01, 0.4)}, e, {.limit = 1, .patience = 3});
  EXPECT_GT(patient.seconds, 2.9) << "an uncertain ratio justifies more time";
  EXPECT_LT(patient.half_width, r.half_width);
  const auto slow = run({steady(e, "a", 10)}, e, {.limit = 1});
  EXPECT_EQ(slow.rounds(), 3) << "three rounds are always run";
  EXPECT_LT(slow.side("a").time().coverage, 0.95) << "and three rounds give only limited coverage";
}

TEST(protocol, rounds_that_were_asked_for_are_done_whatever_time_they_take) {
  Synthetic e;
  const auto r = run({steady(e, "a", 1), steady(e, "b", 2)}, e, {.rounds = 12, .limit = 4});
  EXPECT_EQ(r.rounds(), 12);
  EXPECT_THROW(run({steady(e, "a", 1)}, e, {.rounds = -3}), Error) << "no rounds have no times";
}

// One call in five takes ten times as long: means would be off by a factor of almost three.
TEST(protocol, hiccups_do_not_move_the_median) {
  Synthetic e;
  const auto hiccup = [&](double s) { return [&e, s] { e.queue(e.uniform() < 0.2 ? 10 * s : s); }; };
  const auto r = run({{"a", hiccup(0.01)}, {"b", hiccup(0.03)}}, e, {.limit = 100});
  EXPECT_NEAR(r.ratio("b", "a").median, 3, 1e-9);
  EXPECT_GT(r.side("a").time().max, 0.09);
}

// The machine gets slower all the time. Each side's times drift; the ratio of one round does not.
TEST(protocol, drift_cancels_in_the_ratios) {
  Synthetic e;
  const auto drifting = [&](double s) { return [&e, s] { e.queue(s * (1 + 0.2 * (e.now() - 100))); }; };
  const auto r = run({{"a", drifting(0.01)}, {"b", drifting(0.02)}}, e, {.rounds = 30});
  EXPECT_GT(r.side("a").time().max / r.side("a").time().min, 1.2);
  EXPECT_NEAR(r.ratio("b", "a").median, 2, 0.01);
}

TEST(protocol, each_side_has_its_turn_in_each_round_in_an_order_that_changes_and_can_be_repeated) {
  const auto order_with = [](std::uint64_t seed) {
    Synthetic e;
    std::string order;
    std::vector<Side> sides;
    for (const char c : {'a', 'b', 'c'})
      sides.push_back({std::string(1, c), [&e] { e.queue(0.01); }, 1, [&order, c] { order += c; }});
    run(sides, e, {.rounds = 40, .limit = 100, .seed = seed});
    return order.substr(3);  // the first three are the calibration
  };
  const auto order = order_with(1);
  ASSERT_EQ(order.size(), 120u);
  std::set<std::string> seen;
  for (std::size_t r = 0; r < 40; ++r) {
    const auto round = order.substr(3 * r, 3);
    EXPECT_EQ(std::set<char>(round.begin(), round.end()).size(), 3u) << round;
    if (r % 2) {
      const auto before = order.substr(3 * r - 3, 3);
      EXPECT_EQ(round, std::string(before.rbegin(), before.rend()));
    }
    seen.insert(round);
  }
  EXPECT_EQ(seen.size(), 6u) << "every order must occur";
  EXPECT_EQ(order_with(1), order);
  EXPECT_NE(order_with(2), order);
}

TEST(protocol, work_around_a_turn_is_not_timed) {
  Synthetic e;
  int depth = 0, turns = 0;
  const auto call = [&] {
    EXPECT_EQ(depth, 1);
    e.queue(0.01);
  };
  const Side s{"s", call, 1, [&] { ++depth, ++turns, e.sleep(5); }, [&] { --depth, e.sleep(5); }};
  const auto r = run({s}, e, {.rounds = 4, .limit = 1000, .settle = 0.5});
  EXPECT_NEAR(r.side("s").time().max, 0.01, 1e-12);
  EXPECT_EQ(depth, 0);
  EXPECT_EQ(turns, 5) << "four rounds and the calibration";
  EXPECT_NEAR(e.slept, 5 * 10.5, 1e-9);

  int calls = 0;
  run({{"s", [&] { ++calls, e.queue(0.01); }}}, e, {.rounds = 4, .limit = 1000, .settle = 0.5});
  EXPECT_GE(calls, 4 * 50) << "half a second idle, half a second of unmeasured calls";
}

TEST(protocol, a_flush_stands_before_each_cold_call_and_is_not_timed) {
  Synthetic e;
  const auto r = run({{"s", [&] { e.queue(std::exchange(e.cold, false) ? 2e-3 : 1e-3); }}}, e,
                     {.cache = Cache::flushed, .rounds = 6});
  EXPECT_NEAR(r.side("s").time().median, 2e-3, 1e-12) << "the unmeasured call must not change the state of the caches";
  EXPECT_EQ(r.side("s").calls, 5);
  EXPECT_EQ(e.flushes, 6 * 5 + 1);
  EXPECT_EQ(r.cache, "flushed, they say");
  Synthetic tiny;
  EXPECT_EQ(run({steady(tiny, "s", 1e-6)}, tiny, {.cache = Cache::flushed, .rounds = 3}).side("s").calls, 13)
      << "3 ms of flushing each: 40 ms for a target of 10";
}

TEST(protocol, bad_sides_are_refused) {
  Synthetic e;
  EXPECT_THROW(run({}, e), Error);
  EXPECT_THROW(run({{"a", {}}}, e), Error);
  EXPECT_THROW(run({steady(e, "a", 1), steady(e, "a", 1)}, e), Error);
  Side nothing = steady(e, "a", 1);
  nothing.units = 0;
  EXPECT_THROW(run({nothing}, e), Error);
  EXPECT_THROW(run({steady(e, "a", 1)}, e, {.confidence = 1}), Error);
  EXPECT_THROW(run({{"a", [] { throw Error("[a] broken"); }}}, e), Error) << "what a call throws passes through";
}

// The goal of the protocol: 19 of 20 comparisons of a thing with itself end within 1 %, on a machine whose single
// measurements scatter by 3 %.
TEST(protocol, a_thing_equals_itself) {
  Synthetic e;
  const auto t = self_test(noisy(e, "a", 0.01, 0.03), e, {.limit = 100}, 60, 1e9);
  EXPECT_EQ(t.repeats(), 60);
  EXPECT_GE(t.share(), 0.95);
  EXPECT_GE(t.covered, 54) << "95 % intervals; 54 of 60 leaves three sigma";
  EXPECT_EQ(t.settled, 60);
  EXPECT_EQ(to_json(t)["within"], t.within);

  const auto hopeless = self_test(noisy(e, "a", 0.01, 0.5), e, {.limit = 0.5, .patience = 1}, 40, 1e9);
  EXPECT_LT(hopeless.share(), 0.5);
  EXPECT_EQ(hopeless.settled, 0);

  std::vector<double> left;
  EXPECT_EQ(self_test(steady(e, "a", 1), e, {.limit = 0.1, .patience = 1}, 100, 50,
                      [&](int done, double seconds) {
                        EXPECT_EQ(done, std::ssize(left) + 1);
                        left.push_back(seconds);
                      })
                .repeats(),
            3)
      << "16 s each, as many as fit";
  ASSERT_EQ(left.size(), 3u);
  EXPECT_NEAR(left[0], 34, 2) << "the remaining time within the limit";
  EXPECT_LT(left[2], left[1]);
}

/// A virtual machine in a bad hour: its speed wanders (autocorrelated over 50 ms), falls to 0.6 for a quarter of a
/// second now and then (two modes), and one call in thirty is interrupted for up to twenty times its length (a heavy
/// tail).
class BadHour {
 public:
  explicit BadHour(Synthetic& e) : e_(e) {}
  void call(double seconds) {
    const double passed = e_.now() - last_, keep = std::exp(-passed / 0.05);
    last_ = e_.now();
    wander_ = keep * wander_ + std::sqrt(1 - keep * keep) * 0.05 * e_.noise();
    if (e_.uniform() < 1 - std::exp(-passed / (slow_ ? 0.25 : 0.75))) slow_ = !slow_;
    const double tail = e_.uniform() < 1.0 / 30 ? std::min(20.0, 0.3 / std::max(1e-3, e_.uniform())) : 0;
    e_.queue(seconds * std::exp(wander_ + 0.02 * e_.noise()) * (slow_ ? 1 / 0.6 : 1) * (1 + tail));
  }

 private:
  Synthetic& e_;
  double last_ = 0, wander_ = 0;
  bool slow_ = false;
};

// The same goal in a bad hour: with the time that a comparison may take at most, 19 of 20 end within 1 %.
TEST(protocol, a_thing_equals_itself_in_a_bad_hour) {
  Synthetic e;
  BadHour machine(e);
  const auto t = self_test({"a", [&] { machine.call(0.005); }}, e, {}, 100, 1e9);
  EXPECT_GE(t.within, 95) << to_json(t).dump();
  EXPECT_GE(t.covered, 88) << "95 % intervals; three sigma";
  EXPECT_GE(t.settled, 95) << to_json(t).dump();
  const auto hurried = self_test({"a", [&] { machine.call(0.005); }}, e, {.patience = 1}, 100, 1e9);
  EXPECT_LT(hurried.settled, t.settled) << "with less patience fewer must settle";
}

TEST(environment, the_host_keeps_time_and_flushes) {
  Pool pool(2);
  HostEnvironment host(pool);
  const double start = host.now();
  host.flush();
  host.sleep(1e-3);
  host.synchronize();
  EXPECT_GE(host.now() - start, 1e-3);
  EXPECT_NE(host.flush_method().find("iB"), std::string::npos) << host.flush_method();
  const auto r = run({{"sum", [&] { host.sleep(1e-6); }}}, host, {.rounds = 3, .target = 1e-4});
  EXPECT_GE(r.side("sum").time().min, 1e-6);
}

}  // namespace
}  // namespace hpcdl::lab::compare

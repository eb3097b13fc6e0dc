#include "tools/compare/protocol.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "hpcdl/core/error.h"
#include "hpcdl/rng.h"

namespace hpcdl::lab::compare {

namespace {

constexpr int kAlwaysRounds = 3;
constexpr int kMostCalls = 1'000'000;

class Runner {
 public:
  Runner(const std::vector<Side>& sides, Environment& environment, const Options& options)
      : sides_(sides), env_(environment), options_(options), start_(environment.now()) {
    for (const auto& s : sides_) result_.sides.push_back({s.name, calibrated(s), {}});
    result_.cache = options.cache == Cache::flushed ? env_.flush_method() : std::string(cache_name(options.cache));
    result_.confidence = options.confidence;
  }

  Result all() {
    const int most = options_.rounds ? options_.rounds : options_.most;
    const double allowed = options_.limit * (sides_.size() > 1 ? std::max(1.0, options_.patience) : 1);
    int look = options_.least;  // intervals are checked after 7, 10, 15, 22, ... rounds
    const auto more = [&](int done) {
      if (options_.rounds || done == 0 || done == most) return done < most;
      if (done >= look) {
        if (half_width() <= options_.half_width) return false;
        look = done + std::max(1, done / 2);
      }
      return done < kAlwaysRounds || env_.now() - start_ <= allowed;
    };
    take_turns(sides_.size(), more, [&](int, std::size_t i) { turn(i); }, options_.seed);
    result_.half_width = half_width();
    result_.settled = result_.half_width <= options_.half_width;
    result_.seconds = env_.now() - start_;
    return std::move(result_);
  }

 private:
  /// Runs f() as the turn of one side: after idling, between its before() and after().
  template <class F> auto in_turn(const Side& side, F&& f) {
    if (options_.settle > 0) env_.sleep(options_.settle);
    if (side.before) side.before();
    const auto out = f();
    if (side.after) side.after();
    return out;
  }

  /// Number of calls that fill the target. Finding it is also the warm-up: pages are touched, code and tables are
  /// built.
  int calibrated(const Side& side) {
    return in_turn(side, [&] {
      env_.time(side.call, 1);
      int calls = 1;
      double seconds = env_.time(side.call, calls);
      while (seconds < options_.target / 8 && calls < kMostCalls) {
        calls = std::min(kMostCalls, calls * 4);
        seconds = env_.time(side.call, calls);
      }
      double each = seconds / calls;
      if (options_.cache == Cache::flushed) {  // flushes take time, too: the whole may last four times the target
        const double begin = env_.now(), cold = one_flushed(side);
        each = std::max(cold, (env_.now() - begin) / 4);
      }
      return static_cast<int>(
          std::clamp(std::round(options_.target / std::max(each, 1e-9)), 1.0, static_cast<double>(kMostCalls)));
    });
  }

  double one_flushed(const Side& side) {
    env_.flush();
    return env_.time(side.call, 1);
  }

  void turn(std::size_t i) {
    const Side& side = sides_[i];
    Measured& m = result_.sides[i];
    const double seconds = in_turn(side, [&] {
      // Threads that wake after an idle time may share a core for some milliseconds: warm up for as long as the idle
      // time.
      const double warm = env_.now() + options_.settle;
      do env_.time(side.call, 1);
      while (env_.now() < warm);
      if (options_.cache != Cache::flushed) return env_.time(side.call, m.calls) / m.calls;
      std::vector<double> singles;
      for (int c = 0; c < m.calls; ++c) singles.push_back(one_flushed(side));
      return median(std::move(singles));
    });
    m.seconds.push_back(seconds / side.units);
  }

  double half_width() const {
    const auto& first = result_.sides[0];
    if (result_.sides.size() == 1) return spread(first.seconds, options_.confidence).half_width();
    double widest = 0;
    for (std::size_t i = 1; i < result_.sides.size(); ++i)
      widest = std::max(
          widest,
          ratios_spread(paired_ratios(result_.sides[i].seconds, first.seconds), options_.confidence).half_width());
    return widest;
  }

  const std::vector<Side>& sides_;
  Environment& env_;
  const Options& options_;
  double start_;
  Result result_;
};

}  // namespace

std::vector<std::size_t> turn_order(int round, std::size_t n, std::uint64_t seed) {
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const Rng rng{seed, static_cast<std::uint64_t>(round / 2)};
  for (std::size_t i = n; i > 1; --i) std::swap(order[i - 1], order[rng.below(i, i)]);
  if (round % 2) std::reverse(order.begin(), order.end());
  return order;
}

std::string_view cache_name(Cache c) {
  switch (c) {
    case Cache::warm: return "warm";
    case Cache::flushed: return "flushed before each call";
    case Cache::rotated: return "operands taken in turn from copies that exceed the last-level cache";
  }
  return "";
}

bool Result::has(std::string_view name) const {
  return std::any_of(sides.begin(), sides.end(), [&](const Measured& m) { return m.name == name; });
}

const Measured& Result::side(std::string_view name) const {
  for (const auto& m : sides)
    if (m.name == name) return m;
  fail("compare", "expected the name of a side of this comparison, found \"{}\"", name);
}

Spread Result::ratio(std::string_view top, std::string_view bottom) const {
  return ratios_spread(paired_ratios(side(top).seconds, side(bottom).seconds), confidence);
}

Result run(const std::vector<Side>& sides, Environment& environment, const Options& options) {
  require(!sides.empty(), "compare", "expected at least one side");
  for (std::size_t i = 0; i < sides.size(); ++i) {
    require(static_cast<bool>(sides[i].call), "compare", "side \"{}\" has nothing to call", sides[i].name);
    require(sides[i].units > 0, "compare", "side \"{}\": expected units above 0, found {}", sides[i].name,
            sides[i].units);
    for (std::size_t k = 0; k < i; ++k)
      require(sides[k].name != sides[i].name, "compare", "expected different names of sides, found \"{}\" twice",
              sides[i].name);
  }
  require(options.rounds >= 0, "compare", "expected 0 rounds or more, found {}", options.rounds);
  require(options.confidence > 0 && options.confidence < 1, "compare",
          "expected a confidence between 0 and 1, found {}", options.confidence);
  return Runner(sides, environment, options).all();
}

SelfTest self_test(const Side& side, Environment& environment, const Options& options, int repeats, double limit,
                   const AfterRepeat& after) {
  SelfTest out;
  const double start = environment.now();
  Side again = side;
  again.name += " again";
  Options o = options;
  for (int i = 0; i < repeats; ++i) {
    const double so_far = environment.now() - start;
    if (i > 0 && so_far + so_far / i > limit) break;
    o.seed = options.seed + static_cast<std::uint64_t>(i);
    const Result r = run({side, again}, environment, o);
    const Spread ratio = r.ratio(again.name, side.name);
    out.ratios.push_back(ratio);
    out.within += std::fabs(ratio.median - 1) <= out.tolerance;
    out.covered += ratio.low <= 1 && 1 <= ratio.high;
    out.settled += r.settled;
    const double spent = environment.now() - start, each = spent / (i + 1);
    if (after) after(i + 1, std::max(0.0, std::min(each * (repeats - i - 1), limit - spent)));
  }
  return out;
}

nlohmann::ordered_json to_json(const Spread& s, double scale, const std::string& unit) {
  return {{"median" + unit, s.median * scale},
          {"min" + unit, s.min * scale},
          {"max" + unit, s.max * scale},
          {"low" + unit, s.low * scale},
          {"high" + unit, s.high * scale}};
}

nlohmann::ordered_json to_json(const SelfTest& t) {
  std::vector<double> medians;
  for (const auto& r : t.ratios) medians.push_back(r.median);
  return {{"repeats", t.repeats()},
          {"tolerance", t.tolerance},
          {"within", t.within},
          {"share_within", t.share()},
          {"interval_holds_1", t.covered},
          {"settled", t.settled},
          {"ratios", to_json(spread(medians))}};
}

}  // namespace hpcdl::lab::compare

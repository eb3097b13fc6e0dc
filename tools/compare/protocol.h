#pragma once
// The protocol of every claim about speed. Sides take turns within a round, in a random order that the next
// round reverses; each repeats its call for about `target` seconds after an untimed call; rounds continue
// until the interval of every ratio is narrow enough, or the time limit is reached. A claim is the middle of the
// round-by-round ratios (statistics.h) and the interval around it. Stopping by width and never by outcome keeps that
// interval valid (Chow and Robbins, "On the asymptotic theory of fixed-width sequential confidence intervals for the
// mean", 1965).

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tools/compare/environment.h"
#include "tools/compare/statistics.h"

namespace hpcdl::lab::compare {

/// One of the compared implementations.
struct Side {
  std::string name;
  std::function<void()> call;
  double units = 1;                               // of work in one call; times are reported per unit
  std::function<void()> before = {}, after = {};  // called around its turn in a round, not timed: wake and stop threads
};

/// Where the operands of a timed call lie.
enum class Cache : std::uint8_t {
  warm,     // where the previous call left them
  flushed,  // in memory: every call follows a flush and is timed separately
  rotated,  // in memory: the sides take them in turn from copies that together exceed the last-level cache
};
std::string_view cache_name(Cache c);

struct Options {
  Cache cache = Cache::warm;
  int rounds = 0;             // exactly this number, for any time; 0: as many as needed
  int least = 7, most = 999;  // if rounds is 0
  double target = 0.01;       // seconds of measured calls of one side in one round; one call at least
  double limit = 4;           // seconds for the whole comparison; three rounds are always done
  double patience = 5;  // if the interval of a ratio is not narrow enough by then, the limit is multiplied by this
  double half_width = 0.0075;  // largest relative half width of the interval of each ratio
  double confidence = 0.95;
  double settle = 0;       // idle seconds before each turn, for libraries whose threads spin after a call; the
                           // untimed calls then take the same time
  std::uint64_t seed = 1;  // seed of the order
};

struct Measured {
  std::string name;
  int calls = 1;                // in one round
  std::vector<double> seconds;  // per unit of work, one for each round
  Spread time() const { return spread(seconds); }
};

struct Result {
  std::vector<Measured> sides;
  std::string cache;   // "warm", or how it was made cold
  double seconds = 0;  // of the whole comparison
  double half_width =
      0;  // widest relative half interval: of the ratios to the first side, or of its time if it is the only one
  bool settled = false;  // whether that is as narrow as requested; false: the machine is too noisy for the time limit
  double confidence = 0.95;

  int rounds() const { return sides.empty() ? 0 : static_cast<int>(sides[0].seconds.size()); }
  /// Throws Error if there is no such side.
  const Measured& side(std::string_view name) const;
  bool has(std::string_view name) const;
  /// For each round, the time of `top` divided by the time of `bottom`: how many times faster `bottom` is.
  Spread ratio(std::string_view top, std::string_view bottom) const;
};

/// The order in which `n` sides take their turns in a round, in all measurements of several things:
/// shuffled (Fisher and Yates); odd rounds use the reverse order, so that over two rounds each side comes before
/// each other one equally often.
std::vector<std::size_t> turn_order(int round, std::size_t n, std::uint64_t seed = 1);

/// The loop of all measurements of several things: turn(round, i) for each of n things, in rounds from 0 while
/// more(round) is true.
template <class More, class Turn> void take_turns(std::size_t n, More&& more, Turn&& turn, std::uint64_t seed = 1) {
  for (int round = 0; more(round); ++round)
    for (const auto i : turn_order(round, n, seed)) turn(round, i);
}

/// Throws Error for an empty list, two sides of one name, or a side without a call; exceptions of a call pass through.
Result run(const std::vector<Side>& sides, Environment& environment, const Options& options = {});

/// Repeatedly compares a side with itself: what the protocol claims if there is no difference.
struct SelfTest {
  std::vector<Spread> ratios;  // one for each repeat
  int within = 0;              // repeats with |ratio - 1| <= tolerance
  int covered = 0;             // repeats whose interval holds 1
  int settled = 0;             // repeats that met their half width
  double tolerance = 0.01;
  int repeats() const { return static_cast<int>(ratios.size()); }
  double share() const { return ratios.empty() ? 0 : static_cast<double>(within) / static_cast<double>(ratios.size()); }
};

/// Called after every repeat: how many are done, and for how many seconds the rest may still take.
using AfterRepeat = std::function<void(int done, double left)>;
/// Stops after `repeats` repeats, or if the next one would not fit into `limit` seconds; at least one is done.
SelfTest self_test(const Side& side, Environment& environment, const Options& options, int repeats, double limit,
                   const AfterRepeat& after = {});

/// {"median<unit>", "min<unit>", "max<unit>", "low<unit>", "high<unit>"}: [low, high] is the interval of the median.
nlohmann::ordered_json to_json(const Spread& s, double scale = 1, const std::string& unit = "");
/// Shares, counts and the spread of the ratios.
nlohmann::ordered_json to_json(const SelfTest& t);

}  // namespace hpcdl::lab::compare

#pragma once
// The protocol of every speed claim, written once. Sides take turns within a round, in a random order that the next
// round reverses; each repeats its call for about `target` seconds after a call that is not measured; rounds go on
// until the interval of every ratio is narrow enough, or the time is up. A claim is the middle of the round-by-round
// ratios (statistics.h) and the interval around it. Stopping by width and never by outcome keeps that interval honest
// (Chow and Robbins, "On the asymptotic theory of fixed-width sequential confidence intervals for the mean", 1965).

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/lab/compare/environment.h"
#include "hpcdl/lab/compare/statistics.h"

namespace hpcdl::lab::compare {

/// One of the things compared.
struct Side {
  std::string name;
  std::function<void()> call;
  double units = 1;  // of work in one call; times are reported per unit
  std::function<void()> before = {},
                        after = {};  // around its turn in a round, not timed: waking threads, and stopping them
};

/// Where the operands of a timed call lie.
enum class Cache : std::uint8_t {
  warm,     // where the call before left them
  flushed,  // in memory: every call follows a flush and is timed by itself
  rotated,  // in memory: the sides take them in turn from copies that together exceed the last-level cache
};
std::string_view cache_name(Cache c);

struct Options {
  Cache cache = Cache::warm;
  int rounds = 0;             // exactly so many, whatever time they take; 0: as many as it takes
  int least = 7, most = 999;  // where rounds is 0
  double target = 0.01;       // seconds of measured calls of one side in one round; one call at least
  double limit = 4;           // seconds for the whole comparison; three rounds are always done
  double patience = 5;        // a ratio that is not narrow enough by then may take so many times the limit: noisy hours
  double half_width = 0.0075;  // of the interval of each ratio, relative: narrow enough
  double confidence = 0.95;
  double settle = 0;       // seconds of idling before each turn, for libraries whose threads spin after a call; the
                           // calls that are not measured then go on for as long
  std::uint64_t seed = 1;  // of the order
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
  double seconds = 0;  // all of it
  double half_width =
      0;  // widest relative half interval: of the ratios to the first side, or of its time where it is alone
  bool settled = false;  // whether that met what was asked for; false: the machine is too noisy for the time given
  double confidence = 0.95;

  int rounds() const { return sides.empty() ? 0 : static_cast<int>(sides[0].seconds.size()); }
  /// Throws Error when there is no such side.
  const Measured& side(std::string_view name) const;
  bool has(std::string_view name) const;
  /// Round by round, the time of `top` over the time of `bottom`: how many times faster `bottom` is.
  Spread ratio(std::string_view top, std::string_view bottom) const;
};

/// The order in which `n` sides take their turns in a round, here and wherever several things are measured together:
/// shuffled (Fisher and Yates); odd rounds go through it backwards, so that over two rounds each side stands before each
/// other one equally often.
std::vector<std::size_t> turn_order(int round, std::size_t n, std::uint64_t seed = 1);

/// Throws Error for an empty list, two sides of one name, or a side without a call; what a call throws passes through.
Result run(const std::vector<Side>& sides, Environment& environment, const Options& options = {});

/// The same side compared with itself, again and again: what the protocol would claim where there is nothing to claim.
struct SelfTest {
  std::vector<Spread> ratios;  // one for each repeat
  int within = 0;              // repeats with |ratio - 1| <= tolerance
  int covered = 0;             // repeats whose interval holds 1
  int settled = 0;             // repeats that met their half width
  double tolerance = 0.01;
  int repeats() const { return static_cast<int>(ratios.size()); }
  double share() const { return ratios.empty() ? 0 : static_cast<double>(within) / static_cast<double>(ratios.size()); }
};

/// Told after every repeat: how many are done, and for how many seconds the rest may go on.
using AfterRepeat = std::function<void(int done, double left)>;
/// Stops after `repeats` repeats, or when the next one would not fit into `limit` seconds; one is always done.
SelfTest self_test(const Side& side, Environment& environment, const Options& options, int repeats, double limit,
                   const AfterRepeat& after = {});

/// {"median<unit>", "min<unit>", "max<unit>", "low<unit>", "high<unit>"}: [low, high] is the interval of the median.
nlohmann::ordered_json to_json(const Spread& s, double scale = 1, const std::string& unit = "");
/// Shares, counts and the spread of the ratios.
nlohmann::ordered_json to_json(const SelfTest& t);

}  // namespace hpcdl::lab::compare

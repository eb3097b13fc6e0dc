#pragma once
// Times one case by the protocol, together with the peers that can compute it, and compares it with the speed of light.

#include <map>
#include <optional>

#include "hpcdl/machine/speed_of_light.h"
#include "tools/cases.h"
#include "tools/compare/peers.h"
#include "tools/compare/protocol.h"
#include "tools/disturbance.h"

namespace hpcdl::lab::compare {

/// The name of our side in results.
inline constexpr const char* kOurs = "hpcdl";

struct CaseBench {
  Case what;
  Cost cost;
  double light = 0;                            // seconds that no implementation can beat, by the roofs
  bool compute_bound = false;                  // by arithmetic, not by memory
  Result result;                               // our side first
  std::map<std::string, std::string> missing;  // peer -> why it has no side in this case
  std::map<std::string, double> differences;   // peer -> largest relative difference from our output
  std::optional<SelfTest> self_test;
  Disturbance disturbance;        // while it was timed; not known for a GPU
  std::vector<std::string> ways;  // how our side computes calls that a GPU can compute in several ways: "call: way"

  double seconds() const { return result.sides[0].time().median; }
  /// Speed of light / measured time: 1 is the speed of light.
  double score() const { return light / seconds(); }
  /// Not empty: the time is not credible. The whole interval is faster than the speed of light: the work was not done,
  /// its cost is declared too high, or the roofs were measured too low.
  std::string fault() const;
};

/// Speed of light of a program whose operands may lie in the cache (warm), or come from memory (cold).
LightTime light_of(const Program& program, const Roofs& roofs, Cache cache);

/// Runs on the device of `stream`. Throws Error if the results of a peer differ from ours.
CaseBench bench_case(const Case& c, Stream stream, Environment& environment, const Roofs& roofs,
                     const std::vector<Peer>& peers, const Options& options);
/// Compares the case with itself, `repeats` times or for `limit` seconds.
CaseBench self_test_case(const Case& c, Stream stream, Environment& environment, const Roofs& roofs,
                         const Options& options, int repeats, double limit, const AfterRepeat& after = {});

/// Times in milliseconds. If there is a fault, its text replaces the ratios.
nlohmann::ordered_json to_json(const CaseBench& b);

}  // namespace hpcdl::lab::compare
